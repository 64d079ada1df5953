"""Target files: one format with its reader and a preview, or all of them in a zip."""

from __future__ import annotations

import streamlit as st

from senseapp.errors import SenseError
from senseapp.export import FORMATS, ExportFormat, build_zip
from senseapp.results import ModelProfile, Schedule
from senseapp.ui.components.notices import complain

__all__ = ["downloads"]

_PREVIEW_LINES = 30
_STEM = "schedule"


def downloads(schedule: Schedule, profile: ModelProfile, run_id: str) -> None:
    """Show the format picker, who reads the format, its first lines, and the download buttons."""
    with st.container(border=True):
        st.markdown("##### Target file")
        left, right = st.columns([3, 5], gap="large")
        with left:
            chosen = _choose_format(run_id)
            st.caption(chosen.reader)
            try:
                text = chosen.write(schedule, profile)
            except SenseError as error:
                text = ""
                complain(str(error))
            _buttons(chosen, text, schedule, profile, run_id)
        lines = text.splitlines()
        if lines:
            more = "\n…" if len(lines) > _PREVIEW_LINES else ""
            right.code("\n".join(lines[:_PREVIEW_LINES]) + more, language=None, wrap_lines=True)


def _choose_format(run_id: str) -> ExportFormat:
    names = [name for name, choice in FORMATS.items() if choice.render is not None]
    name = st.selectbox(
        "Format",
        names,
        format_func=lambda name: FORMATS[name].title,
        key=f"schedule.format.{run_id}",
        help="The same schedule in the words of the tool that will read it.",
        persist_state="session",
    )
    return FORMATS[name if name in names else names[0]]


def _buttons(chosen: ExportFormat, text: str, schedule: Schedule, profile: ModelProfile, run_id: str) -> None:
    st.download_button(
        f"Download {chosen.title}",
        text,
        file_name=_STEM + chosen.suffix,
        key=f"schedule.download.{run_id}",
        type="primary",
        icon=":material/download:",
        on_click="ignore",
        disabled=not text,
    )
    st.download_button(
        "Download every format (zip)",
        lambda: build_zip(schedule, profile)[0],
        file_name=f"{_STEM}.zip",
        mime="application/zip",
        key=f"schedule.zip.{run_id}",
        icon=":material/folder_zip:",
        on_click="ignore",
        help="One file for each format that can hold this schedule, and a manifest with their checksums.",
    )
