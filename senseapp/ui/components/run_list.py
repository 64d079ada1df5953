"""The list of runs: open, compare, duplicate, share, rename, download, delete."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.results import RunRecord, RunState
from senseapp.ui import format as fmt
from senseapp.ui.components.compare_runs import MOST_RUNS
from senseapp.ui.components.run_actions import delete_run, keep_run, share_run
from senseapp.ui.components.run_guard import run_line
from senseapp.ui.components.run_search import search_runs
from senseapp.ui.identity import visitor
from senseapp.ui.state import RUN_PARAMETER, remember_run, restart_with, session
from senseapp.ui.vocabulary import STATES

_PAGE = 20


def run_list(records: Sequence[RunRecord]) -> None:
    """Show the newest of the runs that are searched for, and more on request."""
    records = search_runs(records)
    shown = _PAGE * (1 + session().more_runs)
    _compare_bar(records[:shown])
    for record in records[:shown]:
        _card(record)
    if len(records) > shown:
        st.button(f"Show more ({len(records) - shown} older)", key="runs.more", on_click=_show_more)


def _compare_bar(records: Sequence[RunRecord]) -> None:
    """Show the way to the comparison of the ticked runs; the oldest is the one that others are compared with."""
    ticked = [record.run_id for record in reversed(records) if st.session_state.get(_tick_key(record))]
    if st.button(
        f"Compare {fmt.plural(len(ticked), 'run')}" if ticked else "Compare runs",
        key="runs.compare",
        icon=":material/compare_arrows:",
        disabled=not 1 <= len(ticked) <= MOST_RUNS,
        help=f"Tick up to {MOST_RUNS} runs. One alone compares its estimate with its measurement.",
    ):
        st.switch_page("pages/compare.py", query_params={RUN_PARAMETER: ticked})


def _tick_key(record: RunRecord) -> str:
    return f"runs.tick.{record.run_id}"


def _show_more() -> None:
    session().more_runs += 1


def _card(record: RunRecord) -> None:
    state = STATES[record.state]
    with st.container(border=True, key=f"run_card_{record.run_id}"):
        head = st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center")
        head.markdown(f"**{record.title}**")
        head.badge(state.label, icon=state.icon, color=state.color)  # type: ignore[arg-type]
        if record.headline or record.error:
            st.markdown(record.headline or record.error)
        st.caption(_facts(record))
        _actions(record)


def _facts(record: RunRecord) -> str:
    """Return the settings in one line, with the owner where there are several people, and where figures came from."""
    parts = [run_line(record)] + ([fmt.bytes_size(record.num_bytes)] if record.num_bytes else [])
    if visitor().name:
        parts.append(f"owner: {visitor().name}")
    return " · ".join(parts) + (f"  \n{record.origin}" if record.origin else "")


def _actions(record: RunRecord) -> None:
    row = st.container(horizontal=True, gap="small", vertical_alignment="center")
    page = "pages/results.py" if record.state is RunState.DONE else "pages/run.py"
    if row.button("Open", key=f"runs.open.{record.run_id}", icon=":material/open_in_new:"):
        remember_run(record.run_id)
        st.switch_page(page, query_params={RUN_PARAMETER: record.run_id})
    if record.spec.model.library != "imported" and row.button(
        "Duplicate",
        key=f"runs.again.{record.run_id}",
        icon=":material/content_copy:",
        help="Opens Analyze with this run's settings filled in; change what you like. What was measured already is not "
        "measured again.",
    ):
        restart_with(record.spec)
        st.switch_page("pages/analyze.py")
    row.checkbox("Compare", key=_tick_key(record), help="Ticked runs are compared by the button at the top.")
    with row.popover("Shared" if record.shared else "Share", icon=":material/link:"):
        share_run(record)
    with row.popover("Rename, download" if record.state is RunState.DONE else "Rename", icon=":material/edit:"):
        keep_run(record)
    with row.popover("Delete", icon=":material/delete:"):
        delete_run(record)
