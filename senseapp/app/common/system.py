"""The state of the server in figures: what it runs on, how busy it is, and how full."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.figure import figures_row
from senseapp.app.common.notices import complain
from senseapp.core.errors import SenseError
from senseapp.core.files import home
from senseapp.server.operations import SystemReport, system_report
from senseapp.server.settings import ServerSettings
from senseapp.views.words import format as fmt

_REFRESH_SECONDS = 5.0


@st.fragment(run_every=_REFRESH_SECONDS)
def system_panel() -> None:
    """Show the report, and a new one every few seconds; also where the home cannot be used."""
    report = _report()
    for problem in report.problems:
        complain(problem)
    _work(report)
    _machine(report)
    _disk(report)
    _versions(report)


def _report() -> SystemReport:
    try:
        return backend.service().system()
    except SenseError as error:
        report = system_report(home(), None, ServerSettings(), running=0, waiting=0)
        return replace(report, problems=(str(error), *report.problems))


def _work(report: SystemReport) -> None:
    st.header("Work", anchor=False)
    figures = {
        "Running": f"{report.running} of {report.workers}",
        "Waiting": f"{report.waiting} of {report.max_queue}",
        "Up for": fmt.duration(report.up_seconds),
    }
    helps = {
        "Running": "Runs, proofs and other jobs of everybody on this server, and how many may run at once.",
        "Waiting": "Jobs in the queue, and how many it takes.",
    }
    figures_row(figures, helps=helps, key="system.work")


def _machine(report: SystemReport) -> None:
    st.header("Machine", anchor=False)
    figures = {
        "Models run on": report.device,
        "Cores": str(report.processors),
        "Threads": str(report.threads),
        "Threads of the engine": "–" if report.engine_threads is None else str(report.engine_threads),
        "Memory of the server": fmt.bytes_size(report.memory_bytes),
        "Memory of runs": fmt.bytes_size(report.job_memory_bytes) if report.job_processes else "as the server",
        "Free memory": f"{fmt.bytes_size(report.memory_free_bytes)} of {fmt.bytes_size(report.memory_total_bytes)}",
    }
    helps = {
        "Memory of runs": "Runs are measured in processes of their own, which stay at hand with the engine loaded."
        if report.job_processes
        else "Runs are measured by the process that makes the pages.",
    }
    figures_row(figures, helps=helps, key="system.machine")


def _disk(report: SystemReport) -> None:
    st.header("Disk", anchor=False)
    disk = report.disk
    figures = {
        "Runs": "not known" if disk.runs_bytes is None else fmt.bytes_size(disk.runs_bytes),
        "Uploads": fmt.bytes_size(disk.uploads_bytes),
        "Logs": fmt.bytes_size(disk.logs_bytes),
        "Free": f"{fmt.bytes_size(disk.free_bytes)} of {fmt.bytes_size(disk.total_bytes)}",
    }
    figures_row(figures, key="system.disk")


def _versions(report: SystemReport) -> None:
    st.header("Versions", anchor=False)
    st.caption(f"Python {report.python} on {report.system}")
    table = pd.DataFrame(report.versions, columns=["Package", "Version"])
    st.dataframe(table, hide_index=True, width="content", alt="Versions of the packages that the figures depend on")
