"""The table of runs: search, disk use; per run open, compare, duplicate, share, rename, tag, download, delete."""

import math
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.account import share_run
from senseapp.app.common.address import choose
from senseapp.app.common.backend import visitor
from senseapp.app.common.download import new_file, offer_file
from senseapp.app.common.expert import expert, reading_shown
from senseapp.app.common.notices import errors_here, wait_for
from senseapp.app.common.run_guard import decisions, run_line
from senseapp.app.common.state import RUN_PARAMETER, go_to, kept, restart_with, session
from senseapp.app.compare.sides import MOST_RUNS
from senseapp.core.errors import SenseError
from senseapp.core.markdown import md
from senseapp.records.jobs import RunRecord, RunState
from senseapp.server.access import DiskUse
from senseapp.server.backend import UNDO_SECONDS
from senseapp.server.service import Service
from senseapp.store.run_file import RUN_FILE_SUFFIX
from senseapp.views.frames.comparison import runs_frame
from senseapp.views.words import format as fmt
from senseapp.views.words.wording import STATES, compression_text, download_stem


def search_runs(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Show the search field and return the runs that it leaves."""
    text = st.text_input(
        "Search runs",
        placeholder="Title, model, compression, state, result or tag",
        **kept("runs.search"),
        type="search",
        label_visibility="collapsed",
    )
    words = (text or "").casefold().split()
    found = [record for record in records if all(word in _text_of(record) for word in words)]
    if not found:
        st.info(f"No run has all of the words {text!r}. Clear the search to see all {len(records)}.",
                icon=":material/search_off:")  # fmt: skip
    return found


def _text_of(record: RunRecord) -> str:
    """Return what is shown of a run, for the words that are searched for."""
    parts = (
        record.title,
        record.spec.model.title,
        record.spec.data.title,
        *(compression_text(record.spec.sensitivity, terms=terms) for terms in (True, False)),
        STATES[record.state].label,
        record.headline,
        record.error,
        record.origin,
        *record.tags,
        "shared" if record.shared else "",
    )
    return " ".join(parts).casefold()


def disk_line(use: DiskUse, num_runs: int) -> str:
    """Return the disk space of the runs, its limit, and how long runs are kept, in one line."""
    parts = [
        f"{fmt.plural(num_runs, 'run')}, {fmt.bytes_size(use.own_bytes)} of {fmt.bytes_size(use.own_limit_bytes)} used",
        f"all users together: {fmt.bytes_size(use.all_bytes)} of {fmt.bytes_size(use.all_limit_bytes)}",
        f"{fmt.bytes_size(use.free_bytes)} free on the disk",
        f"deleted {fmt.plural(use.keep_days, 'day')} after the last change" if use.keep_days else "kept until deleted",
    ]
    return " · ".join(parts)


def keep_run(record: RunRecord) -> None:
    """Show fields for another title and for tags, and the run as one file."""
    with st.form(f"runs.rename.{record.run_id}", border=False):
        title = st.text_input(
            "Title", value=record.title, key=f"runs.title.{record.run_id}", help="What you call this run."
        )
        tags = st.text_input(
            "Tags",
            value=", ".join(record.tags),
            key=f"runs.tags.{record.run_id}",
            placeholder="none",
            help="Your own words to find this run by, separated by commas.",
        )
        if st.form_submit_button("Save", key=f"runs.save.{record.run_id}"):
            with errors_here():
                backend.service().rename(record.run_id, title)
                backend.service().tag(record.run_id, (tags or "").split(","))
                st.rerun()
    if record.state is RunState.DONE:
        offer_file(
            f"Download run ({fmt.bytes_size(record.num_bytes)} here)",
            partial(_pack, backend.service(), record.run_id),
            f"{download_stem(record.spec)}-{record.run_id[:8]}{RUN_FILE_SUFFIX}",
            is_temporary=True,
            key=f"runs.download.{record.run_id}",
            help="Everything about this run in one file that another senseapp imports. Model and images stay here.",
        )


def _pack(owned: Service, run_id: str) -> Path:
    path = new_file()
    with path.open("xb") as stream:
        owned.pack(run_id, stream)
    return path


def delete_run(record: RunRecord) -> None:
    """Offer to delete the run with its files."""
    st.markdown(
        f"Removes the run and all its files ({fmt.bytes_size(record.num_bytes)}). You can undo it for a minute."
    )
    if st.button("Delete", key=f"runs.delete.{record.run_id}", icon=":material/delete:"):
        with errors_here():
            backend.service().delete(record.run_id)
            session().deleted[record.run_id] = time.monotonic() + UNDO_SECONDS
            if session().last_run == record.run_id:
                session().last_run = ""
            st.rerun()


def undo_deletions() -> None:
    """Offer to restore what this session deleted in the last minute; the offer goes when that is over."""
    # in steps of 5 seconds the ones that are left are counted down
    st.fragment(_undo, run_every=5.0 if session().deleted else None)()


def _undo() -> None:
    deleted, now = session().deleted, time.monotonic()
    for run_id in [run_id for run_id, end in deleted.items() if end <= now]:
        del deleted[run_id]
    if not deleted:
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        left = max(1, round(min(deleted.values()) - now))
        st.markdown(md(":material/delete: {} deleted. {} s to undo that.", fmt.plural(len(deleted), "run"), left))
        if st.button("Undo", key="runs.undo", icon=":material/undo:"):
            with errors_here():
                for run_id in list(deleted):
                    del deleted[run_id]
                    backend.service().restore(run_id)
            st.rerun()


_NEWEST, _SAVED = "Newest first", "Most saved first"
_PAGE = 100  # runs of one look: each row needs its headline from disk
_HEAD_PIXELS, _LINE_PIXELS, _MOST_PIXELS = 35, 20, 560  # head, line; before it scrolls
_LETTERS = {"run": 32, "time": 14, "compression": 15}  # of a line


def run_list(records: Sequence[RunRecord]) -> None:
    """Show the newest of the runs that are searched for as a table, and more on request."""
    records = search_runs(records)
    order = choose("Order", (_NEWEST, _SAVED), _NEWEST, "runs", "order", label_visibility="collapsed")
    if order == _SAVED:  # those without a measured file come last
        left = {run: 1 - answer.saved for run, answer in decisions(records).items() if answer.saved is not None}
        records = sorted(records, key=lambda record: left.get(record.run_id, math.inf))
    shown = records[: _PAGE * (1 + session().more_runs)]
    if not shown:
        return
    bar = st.container(horizontal=True, gap="small", vertical_alignment="center")
    chosen = _table(shown)
    with bar:
        _actions(chosen)
    older = len(records) - len(shown)
    if older and st.button(f"Show more ({older} older)", key="runs.more"):
        session().more_runs += 1
        st.rerun()


def table_key(records: Sequence[RunRecord]) -> str:
    """Return the key of the table of these runs: ticks are positions, so others have other ticks."""
    return f"runs.table.{zlib.crc32(' '.join(record.run_id for record in records).encode()):x}"


def _table(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Show the table; return the ticked runs, in the order of the table."""
    bars = backend.bars_of(records)
    current = [*map(backend.service().work.as_it_goes, records)]
    rows = runs_frame(current, bars or {}, decisions(records), terms=expert())
    lines = max(rows[name].str.len().max() / most for name, most in _LETTERS.items())
    row_height = 15 + _LINE_PIXELS * math.ceil(lines)
    event = st.dataframe(
        rows,
        column_config=_columns(),
        column_order=["open", "run", "state", "saved", "time", "bars", "size", "tags", "compression"],
        row_height=row_height,
        hide_index=True,
        alt=fmt.plural(len(records), "run"),
        key=table_key(records),
        height=min(_HEAD_PIXELS + row_height * len(records) + 3, _MOST_PIXELS),
        on_select="rerun",
        selection_mode="multi-row",
    )
    if bars is None:
        wait_for(lambda: backend.bars_of(records), "Reading the results")
    clicked = st.session_state.get(_OPEN)
    if clicked is not None and 0 <= clicked["row"] < len(records):
        go_to(records[clicked["row"]].run_id)
    return [records[row] for row in sorted(event["selection"]["rows"]) if row < len(records)]


_OPEN = "runs.open"


def _columns() -> dict[str, Any]:
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    return {
        "open": st.column_config.ButtonColumn("", type="tertiary", width=50, pinned=True, key=_OPEN),
        "run": text(
            "Run and result",
            width=262,
            help="What the best file still answers, measured on so many images; where only targets were asked for, "
            "what they save of the weights' size; else what layers lose. How sure that is stands on Results.",
        ),
        "state": text("State", width=84),
        "saved": st.column_config.ProgressColumn(
            "Smaller by", format="%.0f %%", min_value=0, max_value=100, width=88, help="The best file, on the disk."
        ),
        "time": text(
            "Time", width=104, help="Of a call of the best file, with the 95 % interval: in turns with the original."
        ),
        "bars": st.column_config.BarChartColumn(
            "Layers", width=90, help="What each layer loses alone at the usual level, in the order of the network."
        ),
        "size": number("Disk", format="bytes", width=70, help="Of its files on this server's disk."),
        "tags": st.column_config.ListColumn("Tags", width=84),
        "compression": text("Compression", width=118),
    }


def _actions(chosen: Sequence[RunRecord]) -> None:
    """Show what can be done with the ticked runs; the oldest is the one that others are compared with."""
    if not chosen:
        st.caption("Tick a run to share, tag, download or delete it; tick several to compare them.", width="content")
    if len(chosen) == 1:
        _actions_on(chosen[0])
    if st.button(
        f"Compare {len(chosen)} runs" if len(chosen) > 1 else "Compare",
        key="runs.compare",
        icon=":material/compare_arrows:",
        disabled=not 1 < len(chosen) <= MOST_RUNS,
        help=f"Tick two to {MOST_RUNS} runs.",
    ):
        oldest_first = sorted(chosen, key=lambda record: record.created_seconds)
        st.switch_page("pages/compare.py", query_params={RUN_PARAMETER: [record.run_id for record in oldest_first]})


def _actions_on(record: RunRecord) -> None:
    if st.button("Open", key=f"runs.open.{record.run_id}", icon=":material/open_in_new:", type="primary"):
        go_to(record.run_id)
    if record.spec.model.is_runnable and st.button(
        "Duplicate",
        key=f"runs.again.{record.run_id}",
        icon=":material/content_copy:",
        help="Opens Analyze with this run's settings filled in; change what you like. What was measured already is not "
        "measured again.",
    ):
        restart_with(record.spec)
        st.switch_page("pages/analyze.py")
    with st.popover("More", icon=":material/more_horiz:", help="Share, rename, tag, download, delete"):
        st.markdown(md("**{}**", record.title))
        size = [fmt.bytes_size(record.num_bytes)] if record.num_bytes else []
        owner = [f"owner: {visitor().name}"] if visitor().name else []
        for line in filter(None, (" · ".join([run_line(record), *size, *owner]), record.origin)):
            st.caption(line)
        with suppress(SenseError):  # a damaged result is said on the run's own page
            result = backend.result_of(record.run_id)
            for sentence in reading_shown(result.reading.sentences) if result is not None and result.reading else ():
                st.caption(sentence)
        share_run(record)
        st.divider()
        keep_run(record)
        st.divider()
        delete_run(record)
