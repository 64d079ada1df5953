"""A run that has not finished: progress, partial chart and Cancel; once stopped, the reason, Resume and its log."""

import time
from collections.abc import Sequence
from contextlib import suppress

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import hold
from senseapp.app.common.backend import seconds_to_next_look
from senseapp.app.common.download import offer_file
from senseapp.app.common.figure import provenance
from senseapp.app.common.notices import complain, errors_here, notify, percent_done, progress_bar, run_script
from senseapp.app.common.state import go_to, restart_with, session
from senseapp.app.results.layers import bars_figure
from senseapp.app.results.recommendation import first_answer
from senseapp.app.results.view import RunView, choose_view
from senseapp.core.errors import NotFound, SenseError
from senseapp.core.markdown import md
from senseapp.measure.cluster.cluster import cluster_address
from senseapp.records.jobs import RunRecord, RunState
from senseapp.records.measurement import RunResult
from senseapp.records.resolution import baseline_warning
from senseapp.server.operations import LogEntry
from senseapp.views.charts.layers import marked
from senseapp.views.words.wording import STATES

_KEPT_CHARTS = 32  # of all runs that are watched, with those of other levels and metrics


def progress_panel(record: RunRecord) -> None:
    """Show how far a run is that works or waits, and what it has found so far, again and again.

    The page runs again when the run begins or ends.
    """
    seconds, waits = seconds_to_next_look(), True
    with suppress(SenseError):  # the panel says what is wrong
        waits = not ((result := backend.result_of(record.run_id)) and result.shown)
    run_every = seconds * 0.4 if waits else seconds  # times the usual seconds between two looks
    st.fragment(_panel, run_every=run_every)(record, seconds, waits)


def _panel(record: RunRecord, seconds: float, waits: bool) -> None:
    run_id, drawn, title = record.run_id, record.state, record.title
    if seconds_to_next_look() >= 2 * seconds:
        st.rerun()  # many more watch than when this page began to
    try:
        snapshot = backend.service().snapshot(run_id)
    except SenseError as error:
        complain(str(error))
        return
    if snapshot.state.finished or (snapshot.state is RunState.RUNNING and drawn is RunState.QUEUED):
        st.rerun()
    session().watched.add(run_id)
    in_the_tab = "Waiting" if snapshot.state is RunState.QUEUED else percent_done(snapshot)
    st.set_page_config(page_title=f"{in_the_tab} · {title}")
    progress_bar(snapshot)
    with st.container(horizontal=True):
        if not record.read_only:
            st.button(
                "Cancel",
                key="run.cancel",
                icon=":material/stop_circle:",
                on_click=_cancel,
                args=(run_id,),
                help="Stop here. What was made is kept, and the run can be resumed.",
            )
        if st.button("Tell me when it is done", key="run.notify", type="tertiary", icon=":material/notifications:",
                     help="By a notification of your browser, as long as this tab stays open."):  # fmt: skip
            run_script("ask_to_notify")
    with errors_here():
        first_answer(record)
    if _chart_so_far(run_id, time.time() // 2.0) and waits:  # seconds, however many watch it
        st.rerun()  # from here on, look as often as usual


def announce(record: RunRecord) -> None:
    """Name the run in the browser's tab; if this session watched it, say once that it ended, and go on as it was shown.

    Estimates and measurements may have other metrics, and so another one that is usual: the chart keeps what it showed.
    """
    st.set_page_config(page_title=f"{record.title} · senseapp")
    if record.state is RunState.DONE and record.error:
        st.warning(md("{}", record.error), icon=":material/warning:")
    if record.run_id in session().watched:
        session().watched.discard(record.run_id)
        hold(record.run_id, ("metric", "level"))
        notify(record.title, f"{STATES[record.state].label}. {record.headline}".strip(), record.run_id)


def _cancel(run_id: str) -> None:
    with suppress(NotFound):  # deleted meanwhile; the panel says so at its next look
        backend.service().cancel(run_id)


def _chart_so_far(run_id: str, moment: float) -> bool:
    """Draw the results of this ``moment``, the same for all viewers; return whether there are any."""
    try:
        result = backend.result_of(run_id)
    except SenseError as error:
        complain(str(error))
        return False
    if result is None or not result.shown:
        return False
    if warning := baseline_warning(result):
        st.warning(warning, icon=":material/warning:")
    view = choose_view(run_id, result, page="run")
    if view is None or view.rows.empty:
        return True
    _bars(run_id, view.metric.name, view.level, _found_by(run_id, moment, result), view)
    provenance(result)
    return True


@st.cache_data(show_spinner=False, max_entries=_KEPT_CHARTS)
def _found_by(run_id: str, moment: float, _result: RunResult) -> tuple[int, int]:
    """Return how many measurements, and images behind estimates, a run had at the first look of this ``moment``."""
    behind = (change.num_samples for each in _result.estimates for change in each.changes)
    return len(_result.measurements), sum(behind)


@st.cache_data(show_spinner=False, max_entries=_KEPT_CHARTS)
def _bars(run_id: str, metric: str, level: float, found: tuple[int, int], _view: RunView) -> None:
    """Draw the chart once for all who watch: making it takes a tenth of a second of the processor that measures."""
    bars_figure(_view, marked(_view.rows), key=f"run.bars.{run_id}", picks=False)


def run_log(run_id: str) -> None:
    """Show the end of a run's log in a folded block, with a button that saves all of it; nothing if there is none."""
    with errors_here():
        entries = backend.service().run_log(run_id)
        if not entries:
            return
        with st.expander("Log of this run", icon=":material/receipt_long:"):
            # the last 200 lines; the whole can be downloaded
            st.code(_text(entries[-200:]), language=None, wrap_lines=True, height=min(400, 60 + 30 * len(entries)))
            name = f"senseapp-{run_id[:8]}.log"
            offer_file("Download log", lambda: _text(entries), name, mime="text/plain", key="run.log", type="tertiary")


def _text(entries: Sequence[LogEntry]) -> str:
    return "\n".join(
        f"{entry.time:%Y-%m-%d %H:%M:%S} UTC  {entry.level:<8}  {entry.message}"
        + (f"\n{entry.trace}" if entry.trace else "")
        for entry in entries
    )


def stopped(record: RunRecord) -> None:
    """Show why the run ended, with buttons to resume it or to change its settings."""
    failed = record.state is RunState.FAILED
    ended = "This run failed." if failed else "You cancelled this run. Resume goes on where it stopped."
    message = record.error or ended
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
    here = bool(cluster_address()) and row.button(
        "Go on on this machine",
        key="run.resume_here",
        icon=":material/computer:",
        help="Measures what is left here, without the cluster.",
    )
    if resume or here:
        with errors_here():
            backend.service().resume(record.run_id, here=here)
            go_to(record.run_id)
    if change:
        restart_with(record.spec)
        st.switch_page("pages/analyze.py")
    if failed:
        run_log(record.run_id)
