"""Results: which layers are fragile, which are robust, and how sure that is."""

import streamlit as st

from senseapp.app.common.figure import provenance
from senseapp.app.common.run_guard import require_result, require_run, run_header, run_line, to_run_page
from senseapp.app.results.view import result_actions
from senseapp.app.results.views import result_views
from senseapp.records.jobs import RunState

record = require_run("There are no results to show.")
with st.container(gap="xsmall"):  # so that the first chart is in sight
    beside_title = run_header(record, line=False)
    result = require_result(record)
    with beside_title:
        result_actions(record, result)
    provenance(result, about=run_line(record))
    if record.state is not RunState.DONE:
        st.info("This run has not finished; what it has found so far is shown.", icon=":material/hourglass_bottom:")
        to_run_page(record)
    result_views(record.run_id, result)
