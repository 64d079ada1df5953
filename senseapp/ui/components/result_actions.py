"""What to do with a result next: a schedule, a comparison, a report."""

from __future__ import annotations

import streamlit as st

from senseapp.results import RunRecord, SensitivityResult
from senseapp.ui.components.report_download import report_button
from senseapp.ui.state import RUN_PARAMETER


def result_actions(record: RunRecord, result: SensitivityResult) -> None:
    """Show the ways on from a run's results."""
    query = {RUN_PARAMETER: record.run_id}
    st.page_link(
        "pages/targets.py",
        label="Make a schedule",
        icon=":material/arrow_forward:",
        query_params=query,
        help="One level for each layer, chosen by these results.",
    )
    st.page_link(
        "pages/compare.py",
        label="Compare",
        icon=":material/compare_arrows:",
        query_params=query,
        help="Put this run beside another one.",
    )
    report_button(record, result, key=f"results.report.{record.run_id}")
