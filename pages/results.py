"""Results: a run's progress; then which layers are fragile, which are robust, and how sure that is."""

import streamlit as st

from senseapp.app.common.backend import service
from senseapp.app.common.figure import provenance
from senseapp.app.common.run_guard import require_result, require_run, run_header, run_line
from senseapp.app.common.tables import changed_pictures
from senseapp.app.results.view import result_actions
from senseapp.app.results.views import result_views
from senseapp.app.runs.progress import announce, progress_panel, stopped
from senseapp.records.jobs import RunState


def _stored_pictures() -> None:
    for found in service().changed_answers(record.run_id)[:1]:
        changed_pictures(found, key="read")


record = require_run("There are no results to show.")
with st.container(gap="xsmall"):  # so that the first chart is in sight
    beside_title = run_header(record, line=not record.state.finished)
    if not record.state.finished:
        progress_panel(record)
        st.stop()
    announce(record)
    if record.state is not RunState.DONE:
        stopped(record)
    result = require_result(record)
    with beside_title:
        result_actions(record, result)
    provenance(
        result,
        about=f"{record.title} · {run_line(record)}",
        pictures=_stored_pictures,
    )
    result_views(record.run_id, result)
