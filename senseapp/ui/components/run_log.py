"""What was logged about a run, for the person it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.service.run_log import LogEntry
from senseapp.ui import backend
from senseapp.ui.components.notices import errors_here

_SHOWN = 200


def run_log(run_id: str) -> None:
    """Show the end of a run's log in a folded block, with a button that saves all of it; nothing if there is none."""
    with errors_here():
        entries = backend.service().run_log(run_id)
        if not entries:
            return
        with st.expander("Log of this run", icon=":material/receipt_long:"):
            st.code(_text(entries[-_SHOWN:]), language=None, wrap_lines=True, height=min(400, 60 + 30 * len(entries)))
            st.download_button(
                "Download log",
                lambda: _text(entries).encode(),
                file_name=f"senseapp-{run_id[:8]}.log",
                mime="text/plain",
                key="run.log",
                type="tertiary",
                icon=":material/download:",
                on_click="ignore",
            )


def _text(entries: Sequence[LogEntry]) -> str:
    return "\n".join(
        f"{entry.time:%Y-%m-%d %H:%M:%S} UTC  {entry.level:<8}  {entry.message}"
        + (f"\n{entry.trace}" if entry.trace else "")
        for entry in entries
    )
