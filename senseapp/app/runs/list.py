"""The list of runs: search, disk use, and per run open, compare, duplicate, share, rename, download, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlencode, urljoin

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.backend import visitor
from senseapp.app.common.download import download, new_file
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import run_line
from senseapp.app.common.state import RUN_PARAMETER, go_to, restart_with, session
from senseapp.app.compare.view import MOST_RUNS
from senseapp.app.words import format as fmt
from senseapp.app.words.wording import STATES, compression_text
from senseapp.records.jobs import RunRecord, RunState
from senseapp.runs.disk_space import DiskUse
from senseapp.store.run_file import RUN_FILE_SUFFIX


def search_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Show the search field and return the runs that it leaves."""
    text = st.text_input(
        "Search runs",
        placeholder="Title, model, compression, state or result",
        key="runs.search",
        type="search",
        label_visibility="collapsed",
        persist_state="session",
    )
    found = matching_runs(records, text or "")
    if not found:
        st.info(f"No run has all of the words {text!r}. Clear the search to see all {len(records)}.",
                icon=":material/search_off:")  # fmt: skip
    return found


def matching_runs(records: Sequence[RunRecord], text: str) -> list[RunRecord]:
    """Return the runs that hold every word of ``text`` somewhere in what is shown of them."""
    words = text.casefold().split()
    return [record for record in records if all(word in _text_of(record) for word in words)]


def _text_of(record: RunRecord) -> str:
    settings = record.spec.sensitivity
    parts = (
        record.title,
        record.spec.model.title,
        record.spec.data.title,
        compression_text(settings),
        STATES[record.state].label,
        record.headline,
        record.error,
        record.origin,
        "shared" if record.shared else "",
    )
    return " ".join(parts).casefold()


def disk_line(use: DiskUse, num_runs: int) -> str:
    """Return what the runs take and may take, and how long they are kept, in one line."""
    parts = [
        f"{fmt.plural(num_runs, 'run')}, {fmt.bytes_size(use.own_bytes)} of {fmt.bytes_size(use.own_limit_bytes)} used",
        f"everybody's: {fmt.bytes_size(use.all_bytes)} of {fmt.bytes_size(use.all_limit_bytes)}",
        f"{fmt.bytes_size(use.free_bytes)} free on the disk",
        f"deleted {fmt.plural(use.keep_days, 'day')} after the last change" if use.keep_days else "kept until deleted",
    ]
    return " · ".join(parts)


def share_run(record: RunRecord) -> None:
    """Show the link of a shared run and how to take it back, or how to make one."""
    if not record.shared:
        st.markdown("Whoever has the link can look at this run, and change nothing. Nobody finds it otherwise.")
        if st.button("Make a link", key=f"runs.share.{record.run_id}", icon=":material/link:"):
            _share(record, shared=True)
        return
    st.markdown("Whoever has this link can look at the run:")
    st.code(_address(record.link), language=None, wrap_lines=True)
    if st.button("Take the link back", key=f"runs.unshare.{record.run_id}", icon=":material/link_off:"):
        _share(record, shared=False)


def _share(record: RunRecord, *, shared: bool) -> None:
    with errors_here():
        came = visitor()
        if came.name:
            backend.service().introduce(came.name)
        backend.service().share(record.run_id, shared=shared)
        st.rerun()


def _address(link: str) -> str:
    return urljoin(st.context.url or "/", f"results?{urlencode({RUN_PARAMETER: link})}")


def keep_run(record: RunRecord) -> None:
    """Show a field for another title, and the run as one file."""
    with st.form(f"runs.rename.{record.run_id}", border=False):
        title = st.text_input(
            "Title", value=record.title, key=f"runs.title.{record.run_id}", help="What you call this run."
        )
        if st.form_submit_button("Save", key=f"runs.save.{record.run_id}"):
            with errors_here():
                backend.service().rename(record.run_id, title)
                st.rerun()
    if record.state is RunState.DONE:
        st.download_button(
            f"Download run ({fmt.bytes_size(record.num_bytes)} here)",
            download(_packer(record.run_id), is_temporary=True),
            file_name=f"run-{record.run_id[:8]}{RUN_FILE_SUFFIX}",
            mime="application/zip",
            key=f"runs.download.{record.run_id}",
            icon=":material/download:",
            on_click="ignore",
            help="Everything about this run in one file that another senseapp imports. Model and images stay here.",
        )


def _packer(run_id: str) -> Callable[[], Path]:
    """Return what packs the run once it is asked for, in a thread that knows no visitor: whose it is, is known here."""
    owned = backend.service()

    def pack() -> Path:
        path = new_file()
        with path.open("xb") as stream:
            owned.pack(run_id, stream)
        return path

    return pack


def delete_run(record: RunRecord) -> None:
    """Ask once more, then delete the run with its files."""
    st.markdown(f"The run and all its files ({fmt.bytes_size(record.num_bytes)}) are removed for good.")
    if st.button("Delete for good", key=f"runs.delete.{record.run_id}", type="primary"):
        with errors_here():
            backend.service().delete(record.run_id)
            if session().last_run == record.run_id:
                session().last_run = ""
            st.rerun()


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
    if row.button("Open", key=f"runs.open.{record.run_id}", icon=":material/open_in_new:"):
        go_to("pages/results.py", record.run_id)
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
