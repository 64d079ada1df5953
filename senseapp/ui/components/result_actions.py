"""What to do with a result next: a schedule, a comparison, a report."""

from __future__ import annotations

import streamlit as st

from senseapp.results import RunRecord, SensitivityResult
from senseapp.ui.components.report_download import report_button
from senseapp.ui.state import RUN_PARAMETER

__all__ = ["result_actions"]


def result_actions(record: RunRecord, result: SensitivityResult) -> None:
    """Show the ways on from a run's results, in one row."""
    query = {RUN_PARAMETER: record.run_id}
    with st.container(horizontal=True, vertical_alignment="center", key="result_actions"):
        st.page_link(
            "pages/targets.py",
            label="Make a schedule from these results",
            icon=":material/arrow_forward:",
            query_params=query,
        )
        st.page_link(
            "pages/compare.py",
            label="Compare with another run",
            icon=":material/compare_arrows:",
            query_params=query,
        )
        report_button(record, result, key=f"results.report.{record.run_id}")
