"""The views of a run. A new view is one component and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from senseapp.app.common.address import bound, one_of
from senseapp.app.common.state import turn_to
from senseapp.app.results.histograms import histograms_tab
from senseapp.app.results.layers import layers_tab
from senseapp.app.results.levels import curves_tab, heatmap_tab, table_tab
from senseapp.app.results.network import network_tab
from senseapp.app.results.view import RunView, choose_view
from senseapp.records.measurement import RunResult

VIEWS: dict[str, Callable[[RunView], None]] = {
    "Layers": layers_tab,
    "Curves": curves_tab,
    "Heat map": heatmap_tab,
    "Network": network_tab,
    "Histograms": histograms_tab,
    "Table": table_tab,
}


@st.fragment
def result_views(run_id: str, result: RunResult) -> None:
    """Show the pickers and the open tab; a click answers without running the rest of the page again."""
    with st.container(gap="xsmall"):
        view = choose_view(run_id, result, page="results", layers=True)
        if view is None:
            return
        key = f"results.tab.{run_id}"
        bound(run_id, "tab", one_of(VIEWS), next(iter(VIEWS)), key=key)
        tabs = st.tabs(list(VIEWS), on_change="rerun", key=key)
    for tab, (label, show) in zip(tabs, VIEWS.items(), strict=True):
        if tab.open:
            with tab:
                show(replace(view, opened=turn_to(run_id, label)))
