"""The panel of a waiting or running run: progress, chart that fills, Cancel; and what to do when it has ended."""

from __future__ import annotations

import time
from contextlib import suppress

import streamlit as st

from senseapp.errors import NotFound, SenseError
from senseapp.results import JobSnapshot, RunState
from senseapp.results.resolution import baseline_warning
from senseapp.ui import backend
from senseapp.ui import format as fmt
from senseapp.ui.components.layers_tab import bars_figure
from senseapp.ui.components.notices import complain
from senseapp.ui.components.provenance import provenance
from senseapp.ui.components.run_view import RunView, choose_view
from senseapp.ui.level_frames import marked
from senseapp.ui.watchers import seconds_to_next_look

_REDRAW_SECONDS = 2.0
_KEPT_CHARTS = 32


def progress_panel(run_id: str, *, active: bool, may_cancel: bool = True) -> None:
    """Show how far the run is; while it is ``active``, look again and again, and rerun the page when it ends."""
    seconds = seconds_to_next_look() if active else None
    st.fragment(_panel, run_every=seconds)(run_id, active, may_cancel, seconds)


def _panel(run_id: str, active: bool, may_cancel: bool, seconds: float | None) -> None:
    if seconds is not None and seconds_to_next_look() >= 2 * seconds:
        st.rerun()  # many more watch than when this page began to
    try:
        snapshot = backend.service().snapshot(run_id)
    except SenseError as error:
        complain(str(error))
        return
    if active and snapshot.state.finished:
        st.rerun()
    _progress(snapshot)
    if active and may_cancel:
        _cancel_button(snapshot)
    _chart_so_far(run_id, time.time() // _REDRAW_SECONDS if active else None)


def _progress(snapshot: JobSnapshot) -> None:
    if snapshot.state is RunState.QUEUED:
        place = f"{fmt.ordinal(snapshot.queue_place)} in the queue" if snapshot.queue_place else "In the queue"
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


def _chart_so_far(run_id: str, moment: float | None) -> None:
    """Draw what was found; the same for everybody who watches at the same ``moment``."""
    try:
        result = backend.result_of(run_id)
    except SenseError as error:
        complain(str(error))
        return
    if result is None or not result.shown:
        return
    if warning := baseline_warning(result):
        st.warning(warning, icon=":material/warning:")
    view = choose_view(run_id, result, page="run")
    if view is None or view.rows.empty:
        return
    counts = (len(result.measurements), len(result.estimates))
    _bars(run_id, view.metric.name, view.level, counts if moment is None else (moment,), view)
    provenance(result)


@st.cache_data(show_spinner=False, max_entries=_KEPT_CHARTS)
def _bars(run_id: str, metric: str, level: float, state: tuple[float, ...], _view: RunView) -> None:
    """Draw the chart once for all who watch: making it takes a tenth of a second of the processor that measures."""
    bars_figure(_view, marked(_view.rows), key=f"run.bars.{run_id}", picks=False)
