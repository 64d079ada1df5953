"""Finding a run among many, and how much disk space they all take."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.results import RunRecord
from senseapp.service import DiskUse
from senseapp.ui import format as fmt
from senseapp.ui.vocabulary import STATES
from senseapp.ui.wording import compression_text


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
