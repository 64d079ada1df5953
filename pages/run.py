"""Run: how far the measurement is; when it has finished, its results."""

import streamlit as st

from senseapp.results import RunState
from senseapp.ui.components.progress_panel import progress_panel
from senseapp.ui.components.run_guard import require_run, run_header
from senseapp.ui.components.stopped import stopped
from senseapp.ui.state import RUN_PARAMETER

record = require_run("Nothing is being measured.")
if record.state is RunState.DONE:
    st.switch_page("pages/results.py", query_params={RUN_PARAMETER: record.run_id})
run_header(record)
if record.state.finished:
    stopped(record)
progress_panel(record.run_id, active=not record.state.finished, may_cancel=not record.read_only)
