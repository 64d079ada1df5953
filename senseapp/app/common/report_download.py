"""Download a run as one HTML file."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.download import download
from senseapp.app.report.chart_data import ReportContents
from senseapp.app.words import format as fmt
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import SensitivityResult
from senseapp.records.schedule import Schedule
from senseapp.runs.leaderboard import headline
from senseapp.runs.service import Service


def report_button(
    record: RunRecord, result: SensitivityResult, *, key: str, schedules: tuple[Schedule, ...] = ()
) -> None:
    """Offer the report of a run; it is made when it is clicked, in a thread of its own.

    Args:
        record: of the run.
        result: what it found.
        key: of the button.
        schedules: those to show in it beside the proven ones.
    """
    service = backend.service()
    st.download_button(
        "Download report",
        download(lambda: make_report(service, record, result, schedules)),
        file_name=f"{fmt.file_stem(record.title) or 'report'}.html",
        mime="text/html",
        key=key,
        icon=":material/description:",
        type="tertiary",
        on_click="ignore",
        help="One HTML file with the charts, tables, settings, proofs and histograms of this run. It opens in any "
        "browser, offline.",
    )


def make_report(
    service: Service, record: RunRecord, result: SensitivityResult, schedules: tuple[Schedule, ...]
) -> bytes:
    """Return the report with all proofs and histograms that the run has."""
    from senseapp.app.report.document import build_report  # loads the drawing library, 88 MB

    contents = ReportContents(
        title=record.title,
        result=result,
        headline=record.headline or headline(result),
        schedules=schedules,
        validations=service.validations(record.run_id),
        histograms=service.histograms(record.run_id),
        finished=record.state.finished,
    )
    return build_report(contents).encode()
