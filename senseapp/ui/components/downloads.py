"""Target files: one format with its reader and a preview, or all of them in a zip."""

from __future__ import annotations

import io
import zipfile

import streamlit as st

from senseapp.errors import SenseError
from senseapp.export import FORMATS, ExportFormat
from senseapp.results import ModelProfile, Schedule
from senseapp.ui.components.notices import complain

__all__ = ["downloads", "zip_of_targets"]

_PREVIEW_LINES = 12
_STEM = "targets"


def downloads(schedule: Schedule, profile: ModelProfile, run_id: str) -> None:
    """Show the format picker, who reads the format, its first lines, and the download buttons."""
    st.markdown("##### Target file")
    names = [name for name, choice in FORMATS.items() if choice.render is not None]
    name = st.selectbox(
        "Format",
        names,
        format_func=lambda name: FORMATS[name].title,
        key=f"schedule.format.{run_id}",
        help="The same schedule in the words of the tool that will read it.",
        persist_state="session",
    )
    chosen = FORMATS[name if name in names else names[0]]
    st.caption(chosen.reader)
    try:
        text = chosen.write(schedule, profile)
    except SenseError as error:
        complain(str(error))
    else:
        _download_one(chosen, text, run_id)
    _download_all(schedule, profile, run_id)


def _download_one(chosen: ExportFormat, text: str, run_id: str) -> None:
    st.download_button(
        f"Download {chosen.title}",
        text,
        file_name=_STEM + chosen.suffix,
        key=f"schedule.download.{run_id}",
        type="primary",
        icon=":material/download:",
        on_click="ignore",
    )
    lines = text.splitlines()
    with st.expander("First lines"):
        st.code("\n".join(lines[:_PREVIEW_LINES]) + ("\n…" if len(lines) > _PREVIEW_LINES else ""), language=None)


def _download_all(schedule: Schedule, profile: ModelProfile, run_id: str) -> None:
    st.download_button(
        "Download every format (zip)",
        lambda: zip_of_targets(schedule, profile),
        file_name=f"{_STEM}.zip",
        mime="application/zip",
        key=f"schedule.zip.{run_id}",
        icon=":material/folder_zip:",
        on_click="ignore",
        help="One file for each format that can hold this schedule.",
    )


def zip_of_targets(schedule: Schedule, profile: ModelProfile) -> bytes:
    """Return a zip of the schedule in every format that can hold it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for choice in FORMATS.values():
            if not choice.refusal(schedule):
                archive.writestr(_STEM + choice.suffix, choice.write(schedule, profile))
    return stream.getvalue()
