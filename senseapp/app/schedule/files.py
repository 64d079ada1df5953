"""Target files of a schedule for other tools: format, preview, the lines that apply it, and downloads."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import choose
from senseapp.app.common.download import offer_file
from senseapp.app.common.expert import expert
from senseapp.app.common.notices import answer_or_wait, errors_here, show_notes
from senseapp.core.markdown import md
from senseapp.formats.base import ExportFormat
from senseapp.formats.registry import FORMATS
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.views.words.wording import download_stem

_PREVIEW_LINES = 30  # about a screen of the file


def downloads(schedule: Schedule, profile: ModelProfile, run_id: str, *, partner_id: str = "") -> None:
    """Show the format picker, the format's reader, its first lines, its limitations, and how to apply it.

    ``partner_id`` is the second run, where the schedule was made from two.
    """
    record = backend.service().run(run_id)
    command = "RUN" if record.read_only else run_id  # a link opens no folder
    command += f" --run {partner_id}" if partner_id else ""
    stem = f"{download_stem(record.spec)}-schedule"
    left, right = st.columns([3, 5], gap="large")
    with left:
        chosen = _choose_format(schedule, run_id)
        st.caption(chosen.reader)
        text = _text(chosen, schedule, profile, run_id, stem)
        _buttons(chosen, text, schedule, run_id, stem, command)
        show_notes(chosen.notes(schedule, profile) if text else ())
    if not text:
        return
    lines = text.splitlines()
    more = "\n…" if len(lines) > _PREVIEW_LINES else ""
    right.markdown(md("**To apply it**"))
    usage = chosen.lines(schedule, stem + chosen.suffix, run=command)
    right.code(usage.rstrip(), language=None, wrap_lines=True)
    with right.expander("First lines of the file", icon=":material/description:"):
        st.code("\n".join(lines[:_PREVIEW_LINES]) + more, language=None, wrap_lines=True)


def _choose_format(schedule: Schedule, run_id: str) -> ExportFormat:
    """Offer the formats that have words for what ``schedule`` compresses."""
    known = {name: form for name, form in FORMATS.items() if expert() or not form.is_retired}
    names = [name for name, form in known.items() if not form.mismatch(schedule)]
    name = choose(
        "Format",
        {name: FORMATS[name].title for name in names},
        names[0],
        run_id,
        "format",
        is_list=True,
        help="The same schedule in the words of the tool that will read it.",
    )
    if others := [form.title for name, form in known.items() if name not in names]:
        kinds = " and ".join(sorted({entry.compression for entry in schedule.entries} - {"none"}))
        st.caption(f"Not offered, as they have no words for {kinds} of each layer: {', '.join(others)}.")
    return FORMATS[name]


def _text(chosen: ExportFormat, schedule: Schedule, profile: ModelProfile, run_id: str, stem: str) -> str:
    """Return the file's text; empty where it cannot be written, or not yet, which is said."""
    service, text = backend.service(), ""
    with errors_here():
        if chosen.render is not None:
            text = chosen.write(schedule, profile)
        elif graph := answer_or_wait(lambda: backend.graph_of(run_id), "Exporting the network as a graph"):
            text = graph.overlay(schedule)
            offer_file(  # the overlay is of no use without it
                "Download the graph (.pt2)",
                lambda: service.schedules.graph(run_id).path,  # asks anew whether this visitor may read the run
                f"{stem}.model-explorer.pt2",
                key=f"schedule.graph.{run_id}",
                icon=":material/account_tree:",
            )
    return text


def _buttons(chosen: ExportFormat, text: str, schedule: Schedule, run_id: str, stem: str, command: str) -> None:
    key = f"schedule.download.{run_id}"
    name = stem + chosen.suffix
    offer_file(f"Download {chosen.title}", lambda: text, name, key=key, type="primary", disabled=not text)
    service = backend.service()  # whose it is can be asked here, and not in the thread that makes the zip
    offer_file(
        "Download every format (zip)",
        lambda: service.schedules.target_zip(run_id, schedule, run=command),
        f"{stem}s.zip",
        key=f"schedule.zip.{run_id}",
        icon=":material/folder_zip:",
        help="One file for each format that can hold this schedule, and a manifest with their checksums; not the large "
        "graph of Model Explorer, which comes with that format. The first time this takes a few seconds.",
    )
