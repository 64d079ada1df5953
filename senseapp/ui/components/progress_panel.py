"""The panel of a waiting or running run: progress, chart that fills, Cancel; and what to do when it has ended."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from senseapp.errors import NotFound, SenseError
from senseapp.results import JobSnapshot, RunState
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.layers_tab import bars_figure
from senseapp.ui.components.notices import complain
from senseapp.ui.components.provenance import provenance
from senseapp.ui.components.run_view import choose_view

__all__ = ["progress_panel"]

_POLL_SECONDS = 1.0


def progress_panel(run_id: str, *, active: bool) -> None:
    """Show how far the run is; poll once a second while it is ``active``, and rerun the page when it ends."""
    st.fragment(_panel, run_every=_POLL_SECONDS if active else None)(run_id, active)


def _panel(run_id: str, active: bool) -> None:
    try:
        snapshot = backend.service().snapshot(run_id)
    except SenseError as error:
        complain(str(error))
        return
    if active and snapshot.state.finished:
        st.rerun()
    _progress(snapshot)
    if active:
        _cancel_button(snapshot)
    _chart_so_far(run_id)


def _progress(snapshot: JobSnapshot) -> None:
    if snapshot.state is RunState.QUEUED:
        place = f"Place {snapshot.queue_place} in the queue" if snapshot.queue_place else "In the queue"
        st.progress(snapshot.fraction, text=f"{place}. It starts by itself; you can leave this page.")
        return
    st.progress(snapshot.fraction, text=f"**{fmt.percent(snapshot.fraction)}** · {snapshot.phase or 'Starting'}")
    st.caption(_figures(snapshot))


def _figures(snapshot: JobSnapshot) -> str:
    parts = [f"{snapshot.done} of {snapshot.total} done"] if snapshot.total else []
    parts.append(f"{fmt.clock(snapshot.elapsed_seconds)} elapsed")
    if not snapshot.state.finished:
        remaining = snapshot.remaining_seconds
        parts.append("time left not known yet" if remaining is None else f"{fmt.about(remaining)} left")
    return " · ".join(parts)


def _cancel_button(snapshot: JobSnapshot) -> None:
    st.button(
        "Cancel",
        key="run.cancel",
        icon=":material/stop_circle:",
        on_click=_cancel,
        args=(snapshot.run_id,),
        help="Stop here. What was measured is kept, and the run can be resumed.",
    )


def _cancel(run_id: str) -> None:
    with suppress(NotFound):  # deleted meanwhile; the panel says so at its next look
        backend.service().cancel(run_id)


def _chart_so_far(run_id: str) -> None:
    try:
        result = backend.result_of(run_id)
    except SenseError as error:
        complain(str(error))
        return
    if result is None or not result.shown:
        return
    view = choose_view(run_id, result, page="run")
    if view is None or view.rows.empty:
        return
    bars_figure(view, key=f"run.bars.{run_id}", picks=False)
    provenance(result)
