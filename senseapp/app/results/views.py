"""The views of a run. A new view is one component and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import streamlit as st

from senseapp.app.common.state import turn_to
from senseapp.app.results.curves import curves_tab
from senseapp.app.results.heatmap import heatmap_tab
from senseapp.app.results.histograms import histograms_tab
from senseapp.app.results.layers import layers_tab
from senseapp.app.results.network import network_tab
from senseapp.app.results.table import table_tab
from senseapp.app.results.view import RunView, choose_view
from senseapp.records.measurement import SensitivityResult


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One tab of the Results page."""

    label: str
    show: Callable[[RunView], None]


VIEWS = (
    View(label="Layers", show=layers_tab),
    View(label="Curves", show=curves_tab),
    View(label="Heat map", show=heatmap_tab),
    View(label="Network", show=network_tab),
    View(label="Histograms", show=histograms_tab),
    View(label="Table", show=table_tab),
)


@st.fragment
def result_views(run_id: str, result: SensitivityResult) -> None:
    """Show the pickers and the open tab; a click answers without running the rest of the page again."""
    with st.container(gap="xsmall"):
        view = choose_view(run_id, result, page="results", layers=True)
        if view is None:
            return
        tabs = st.tabs([entry.label for entry in VIEWS], on_change="rerun", key=f"results.tab.{run_id}")
    for tab, entry in zip(tabs, VIEWS, strict=True):
        if tab.open:
            with tab:
                entry.show(replace(view, opened=turn_to(run_id, entry.label)))
