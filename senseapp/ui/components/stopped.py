"""What to do with a run that ended before it was finished."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.results import RunRecord, RunState
from senseapp.ui import backend
from senseapp.ui.components.notices import complain
from senseapp.ui.components.run_log import run_log
from senseapp.ui.state import RUN_PARAMETER, restart_with

_SENTENCES = {
    RunState.CANCELLED: "You cancelled this run. What was measured is kept; press Resume to go on from there.",
    RunState.INTERRUPTED: "senseapp stopped before this run was finished. What was measured is kept; press Resume to "
    "go on from there.",
    RunState.FAILED: "This run failed.",
}


def stopped(record: RunRecord) -> None:
    """Say why the run ended; offer to resume it, or to change its settings."""
    failed = record.state is RunState.FAILED
    message = record.error or _SENTENCES[record.state]
    (st.error if failed else st.warning)(message, icon=":material/error:" if failed else ":material/pause_circle:")
    if record.read_only:
        return
    row = st.container(horizontal=True)
    resume = row.button(
        "Try again" if failed else "Resume",
        key="run.resume",
        type="secondary" if failed else "primary",
        icon=":material/play_arrow:",
    )
    change = row.button(
        "Change the settings",
        key="run.change",
        type="primary" if failed else "secondary",
        icon=":material/tune:",
        help="Opens Analyze with this run's settings filled in.",
    )
    here = backend.uses_cluster() and row.button(
        "Go on on this machine",
        key="run.resume_here",
        icon=":material/computer:",
        help="Measures what is left here, without the cluster.",
    )
    if resume or here:
        _resume(record, here=here)
    if change:
        restart_with(record.spec)
        st.switch_page("pages/analyze.py")
    if failed:
        run_log(record.run_id)


def _resume(record: RunRecord, *, here: bool) -> None:
    try:
        backend.service().resume(record.run_id, here=here)
    except SenseError as error:
        complain(str(error))
        return
    st.switch_page("pages/run.py", query_params={RUN_PARAMETER: record.run_id})
