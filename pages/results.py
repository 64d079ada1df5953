"""Results: a run's progress; then the answer with its proof, and below it files, layers, schedule and details."""

import streamlit as st

from senseapp.app.common.run_guard import require_result, require_run, run_header
from senseapp.app.results.recommendation import answer_block
from senseapp.app.results.view import result_actions
from senseapp.app.results.views import folded_sections
from senseapp.app.runs.progress import announce, progress_panel, stopped
from senseapp.records.jobs import RunState

record = require_run("There are no results to show.")
with st.container(gap="xsmall"):  # so that the answer is in sight
    beside_title = run_header(record, line=record.state is not RunState.DONE)
    if not record.state.finished:
        progress_panel(record)
        st.stop()
    announce(record)
    if record.state is not RunState.DONE:
        stopped(record)
    result = require_result(record)
    answer_block(record, result)
    with beside_title:  # of what was asked for in the block of the answer
        result_actions(record, result)
    folded_sections(record, result)
