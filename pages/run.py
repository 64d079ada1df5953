"""Run: how far the measurement is; when it has finished, its results."""

import streamlit as st

from senseapp.app.common.run_guard import require_run, run_header
from senseapp.app.common.state import RUN_PARAMETER
from senseapp.app.runs.progress import progress_panel, stopped
from senseapp.records.jobs import RunState

record = require_run("Nothing is being measured.")
if record.state is RunState.DONE:
    st.switch_page("pages/results.py", query_params={RUN_PARAMETER: record.run_id})
run_header(record)
if record.state.finished:
    stopped(record)
progress_panel(record.run_id, active=not record.state.finished, may_cancel=not record.read_only)
