"""Times of a file on the device that it is for, from a report of the device's own tool."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.notices import errors_here, show_notes
from senseapp.app.common.tables import figures_row, text_table
from senseapp.app.common.uploads import expect_files, read_upload
from senseapp.core.markdown import md
from senseapp.records.candidate import Candidate, file_name
from senseapp.records.jobs import RunRecord
from senseapp.store.device_times.base import ReportSummary
from senseapp.views.words import format as fmt

_MOST_MEGABYTES = 50  # of a profile, which may list every operator of many runs


def device_report(record: RunRecord, candidates: Sequence[Candidate]) -> None:
    """Say how files are timed on their device, and show the report of one; nothing where none is for a device."""
    made = [each for each in candidates if each.runs and each.runtime.on_device]
    if not made or not backend.visitor().is_known:
        return
    with st.popover("Time on a device", icon=":material/smartphone:"), errors_here():
        machine = made[0].deployment.machine if made[0].deployment is not None else "this computer"
        st.caption(md("Times above are of {}. Measure it there, and choose the report.", machine))
        name = file_name(record.spec.model, made[0])
        st.code(made[0].runtime.on_device.format(name=name), language=None, wrap_lines=True)
        expect_files()
        file = st.file_uploader(
            "Report of the device",
            type=["txt", "log", "csv", "json"],
            key=f"results.device_report.{record.run_id}",
            max_upload_size=_MOST_MEGABYTES,
            help="What the tool printed, or its CSV. It is shown here and not kept.",
        )
        if file is not None:
            content = read_upload(file, most_megabytes=_MOST_MEGABYTES)
            _shown(backend.service().inputs.summarise_report(content, name=file.name))


def _shown(found: ReportSummary) -> None:
    call = f"{fmt.short(1000 * found.seconds)} ms"
    figures = {"A call, estimated" if found.is_estimate else "A call": call, "Tool": found.tool}
    if found.processors:
        figures["Operators"] = ", ".join(f"{count:,} on {name}" for name, count in found.processors)
    figures_row(figures, key="results_device_report")
    if found.kinds:
        text_table(
            ("Operator", "Number", "Time"),
            [(kind, str(count), f"{fmt.short(1000 * spent)} ms") for kind, count, spent in found.kinds],
            alt_text="What operators of each kind take on the device",
            key="results.device_report.kinds",
        )
    show_notes(found.notes)
