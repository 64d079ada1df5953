"""The list of runs: open, use its settings again, rename, delete."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.results import RunRecord, RunState
from senseapp.ui import backend
from senseapp.ui.components.notices import errors_here
from senseapp.ui.components.run_guard import run_line
from senseapp.ui.state import RUN_PARAMETER, remember_run, restart_with, session
from senseapp.ui.vocabulary import STATES

__all__ = ["run_list"]

_PAGE = 20


def run_list(records: Sequence[RunRecord]) -> None:
    """Show the newest runs, and more on request."""
    shown = _PAGE * (1 + session().more_runs)
    for record in records[:shown]:
        _card(record)
    if len(records) > shown:
        st.button(f"Show more ({len(records) - shown} older)", key="runs.more", on_click=_show_more)


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
        st.caption(run_line(record))
        _actions(record)


def _actions(record: RunRecord) -> None:
    row = st.container(horizontal=True, gap="small")
    page = "pages/results.py" if record.state is RunState.DONE else "pages/run.py"
    if row.button("Open", key=f"runs.open.{record.run_id}", icon=":material/open_in_new:"):
        remember_run(record.run_id)
        st.switch_page(page, query_params={RUN_PARAMETER: record.run_id})
    if record.spec.model.library != "imported" and row.button(
        "Use settings",
        key=f"runs.again.{record.run_id}",
        icon=":material/content_copy:",
        help="Opens Analyze with this run's settings filled in.",
    ):
        restart_with(record.spec)
        st.switch_page("pages/analyze.py")
    with row.popover("Rename", icon=":material/edit:"):
        _rename(record)
    with row.popover("Delete", icon=":material/delete:"):
        _delete(record)


def _rename(record: RunRecord) -> None:
    with st.form(f"runs.rename.{record.run_id}", border=False):
        title = st.text_input(
            "Title", value=record.title, key=f"runs.title.{record.run_id}", help="What you call this run."
        )
        if st.form_submit_button("Save", key=f"runs.save.{record.run_id}"):
            with errors_here():
                backend.service().rename(record.run_id, title)
                st.rerun()


def _delete(record: RunRecord) -> None:
    st.markdown("The run and all its files are removed for good.")
    if st.button("Delete for good", key=f"runs.delete.{record.run_id}", type="primary"):
        with errors_here():
            backend.service().delete(record.run_id)
            if session().last_run == record.run_id:
                remember_run("")
            st.rerun()
