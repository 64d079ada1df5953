"""The Table tab: every number, sortable and downloadable."""

from __future__ import annotations

import streamlit as st

from senseapp.exchange import can_be_distiller_csv, write_distiller_csv
from senseapp.service import sensitivity_csv
from senseapp.spec import dumps
from senseapp.ui.components.run_view import RunView
from senseapp.ui.tables import measurement_columns, show_table

__all__ = ["table_tab"]

_UNKNOWN_IF_IMPORTED = ("layer_type", "low", "high", "params", "macs", "members")


def table_tab(view: RunView) -> None:
    """Show all levels of all layers for the chosen metric, and offer everything as files."""
    st.markdown("##### All measurements of " + view.metric.label)
    st.caption("Click a column's head to sort. The files hold all metrics.")
    known = measurement_columns(view.metric)
    if view.result.spec.data.kind == "imported":
        known = {name: column for name, column in known.items() if name not in _UNKNOWN_IF_IMPORTED}
    show_table(
        view.frame,
        known,
        alt_text=f"{view.metric.label} of every layer at every level",
        key=f"table.{view.run_id}",
    )
    row = st.container(horizontal=True)
    row.download_button(
        "Download CSV",
        lambda: sensitivity_csv(view.result),
        file_name="sensitivity.csv",
        mime="text/csv",
        key=f"table.csv.{view.run_id}",
        on_click="ignore",
        icon=":material/download:",
        help="One row per layer, level and metric; opens in any spreadsheet.",
    )
    row.download_button(
        "Download JSON",
        lambda: dumps(view.result),
        file_name="result.json",
        mime="application/json",
        key=f"table.json.{view.run_id}",
        on_click="ignore",
        icon=":material/download:",
        help="Everything this run found, with its settings; senseapp reads it back.",
    )
    if can_be_distiller_csv(view.result):
        row.download_button(
            "Download Distiller CSV",
            lambda: write_distiller_csv(view.result),
            file_name="distiller_sensitivity.csv",
            mime="text/csv",
            key=f"table.distiller.{view.run_id}",
            on_click="ignore",
            icon=":material/download:",
            help="Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it.",
        )
