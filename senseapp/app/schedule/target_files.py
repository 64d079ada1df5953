"""Target files: one format with its reader and a preview, or all of them in a zip."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.download import download
from senseapp.app.common.notices import complain, wait_for
from senseapp.app.common.state import kept
from senseapp.core.errors import SenseError
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.runs.graph_files import GraphFiles
from senseapp.schedules.export.base import ExportFormat
from senseapp.schedules.export.registry import FORMATS

_PREVIEW_LINES = 30
_STEM = "schedule"


def downloads(schedule: Schedule, profile: ModelProfile, run_id: str) -> None:
    """Show the format picker, who reads the format, its first lines, and the download buttons."""
    with st.container(border=True):
        st.markdown("## Target file")
        left, right = st.columns([3, 5], gap="large")
        with left:
            chosen = _choose_format(run_id)
            st.caption(chosen.reader)
            text = _text(chosen, schedule, profile, run_id)
            _buttons(chosen, text, schedule, run_id)
        lines = text.splitlines()
        if lines:
            more = "\n…" if len(lines) > _PREVIEW_LINES else ""
            right.code("\n".join(lines[:_PREVIEW_LINES]) + more, language=None, wrap_lines=True)


def _choose_format(run_id: str) -> ExportFormat:
    names = list(FORMATS)
    name = st.selectbox(
        "Format",
        names,
        format_func=lambda name: FORMATS[name].title,
        **kept(f"schedule.format.{run_id}"),
        help="The same schedule in the words of the tool that will read it.",
    )
    return FORMATS[name if name in names else names[0]]


def _text(chosen: ExportFormat, schedule: Schedule, profile: ModelProfile, run_id: str) -> str:
    """Return the file's text; empty where it cannot be written, or not yet, which is said."""
    try:
        if chosen.render is not None:
            return chosen.write(schedule, profile)
        graph = _graph(run_id)
        return graph.overlay(schedule) if graph is not None else ""
    except SenseError as error:
        complain(str(error))
        return ""


def _graph(run_id: str) -> GraphFiles | None:
    """Return the run's network as a graph; offer it beside the overlay, which is of no use without it."""
    graph = backend.graph_of(run_id)
    if graph is None:
        wait_for(lambda: backend.graph_of(run_id), "Exporting the network as a graph")
        return None
    service = backend.service()
    st.download_button(
        "Download the graph (.pt2)",
        download(lambda: service.schedules.graph(run_id).path),  # asks anew whether this visitor may read the run
        file_name=f"{_STEM}.model-explorer.pt2",
        key=f"schedule.graph.{run_id}",
        icon=":material/account_tree:",
        on_click="ignore",
    )
    return graph


def _buttons(chosen: ExportFormat, text: str, schedule: Schedule, run_id: str) -> None:
    st.download_button(
        f"Download {chosen.title}",
        download(lambda: text),
        file_name=_STEM + chosen.suffix,
        key=f"schedule.download.{run_id}",
        type="primary",
        icon=":material/download:",
        on_click="ignore",
        disabled=not text,
    )
    if chosen.companion is not None and text:
        name, content = chosen.companion
        st.download_button(
            f"Download {name}",
            download(lambda: content),
            file_name=name,
            key=f"schedule.companion.{run_id}",
            icon=":material/code:",
            on_click="ignore",
        )
    service = backend.service()  # whose it is can be asked here, and not in the thread that makes the zip
    st.download_button(
        "Download every format (zip)",
        download(lambda: service.schedules.target_zip(run_id, schedule)),
        file_name=f"{_STEM}.zip",
        mime="application/zip",
        key=f"schedule.zip.{run_id}",
        icon=":material/folder_zip:",
        on_click="ignore",
        help="One file for each format that can hold this schedule, the graph for Model Explorer, and a manifest with "
        "their checksums. The first time this takes a few seconds.",
    )
