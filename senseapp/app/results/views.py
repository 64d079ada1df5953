"""The parts of a Results page below its answer, folded; a new view of the layers is one component and one line here."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from senseapp.app.common import backend
from senseapp.app.common.address import SWITCH, bound, choose, one_of
from senseapp.app.common.figure import provenance
from senseapp.app.common.notices import errors_here
from senseapp.app.common.run_guard import run_line
from senseapp.app.common.tables import changed_pictures
from senseapp.app.results.histograms import histograms_tab
from senseapp.app.results.layers import curves_tab, heatmap_tab, layers_tab
from senseapp.app.results.network import network_tab
from senseapp.app.results.recommendation import files_section, schedule_section
from senseapp.app.results.view import RunView, asks_for_layers, choose_view, layers_key
from senseapp.records.jobs import RunRecord
from senseapp.records.measurement import RunResult

VIEWS: dict[str, Callable[[RunView], None]] = {
    "Layers": layers_tab,
    "Curves": curves_tab,
    "Heat map": heatmap_tab,
    "More": lambda view: _more_tab(view),
}
_MORE = {"Network": network_tab, "Histograms": histograms_tab}


def folded_sections(record: RunRecord, result: RunResult) -> None:
    """Show the sections below the answer; each is drawn once it is opened."""
    run_id = record.run_id
    asks = asks_for_layers(run_id)
    sections: dict[str, tuple[str, str, Callable[[], None]]] = {
        "files": ("Other files", "folder_open", lambda: files_section(record, result)),
        "layers": ("Layers", "bar_chart", lambda: result_views(run_id, result)),
        "schedule": ("Schedule", "tune", lambda: schedule_section(record, result)),
        "details": ("Details", "info", lambda: _details(record, result)),
    }
    for name, (label, icon, show) in sections.items():
        key = layers_key(run_id) if name == "layers" else f"results.show.{name}.{run_id}"
        bound(run_id, f"show-{name}", SWITCH, asks and name == "layers", key=key)
        with st.expander(label, icon=f":material/{icon}:", key=key, on_change="rerun") as section:
            if section.open:
                with errors_here():
                    show()


def _details(record: RunRecord, result: RunResult) -> None:
    def pictures() -> None:
        for found in backend.service().changed_answers(record.run_id)[:1]:
            changed_pictures(found, key="read")

    provenance(result, about=f"{record.title} · {run_line(record)}", pictures=pictures)


def _more_tab(view: RunView) -> None:
    names = list(_MORE)
    shown = choose("View", names, names[0], view.run_id, "more", label_visibility="collapsed")
    _MORE[shown](view)


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
    for tab, show in zip(tabs, VIEWS.values(), strict=True):
        if tab.open:
            with tab:
                show(view)
