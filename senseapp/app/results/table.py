"""The Table tab: every number, sortable and downloadable."""

from __future__ import annotations

import streamlit as st

from senseapp.app.common.download import download
from senseapp.app.common.tables import layer_columns, measurement_columns, show_table
from senseapp.app.frames.levels import layer_frame, reached_note
from senseapp.app.frames.results import metrics_of, top_frame
from senseapp.app.results.view import RunView
from senseapp.core.codec import dumps
from senseapp.metrics import METRICS
from senseapp.runs.outputs import sensitivity_csv
from senseapp.store.distiller_table import can_be_distiller_csv, write_distiller_csv

_UNKNOWN_IF_IMPORTED = ("layer_type", "low", "high", "params", "macs", "members")


def table_tab(view: RunView) -> None:
    """Show one layer in all metrics, all layers in the chosen one, and offer everything as files."""
    _one_layer(view)
    _all_layers(view)
    _files(view)


def _one_layer(view: RunView) -> None:
    """Show every metric of the picked layer at every level; without a pick, of the most fragile one."""
    fragile = top_frame(view.ranked, 1, fragile=True)
    layer = view.picked or (str(fragile["layer"].iloc[0]) if len(fragile) else view.result.profile.layers[0].name)
    rows = layer_frame(view.result, layer)
    st.markdown(f"## {layer} at every level")
    st.caption(
        "Each row is the network with this layer alone compressed; choose another layer above. Take the strongest "
        f"level whose drop you can accept. {reached_note(view.result)}"
    )
    if rows["reason"].any():
        st.caption(f":material/block: {rows['reason'].loc[lambda reason: reason != ''].iloc[0]}")
    metrics = [METRICS[name] for name in metrics_of(view.result)]
    reached = bool(reached_note(view.result)) and view.result.profile.sizes_known
    show_table(
        rows,
        layer_columns(metrics, reached=reached),
        alt_text=f"All metrics of {layer} at every level",
        key=f"table.layer.{view.run_id}",
    )


def _all_layers(view: RunView) -> None:
    st.markdown("## All measurements of " + view.metric.label)
    st.caption("One row per layer and level; click a column's head to sort. The files hold all metrics.")
    known = measurement_columns(view.metric)
    if view.result.spec.data.kind == "imported":
        known = {name: column for name, column in known.items() if name not in _UNKNOWN_IF_IMPORTED}
    show_table(
        view.frame,
        known,
        alt_text=f"{view.metric.label} of every layer at every level",
        key=f"table.{view.run_id}",
    )


def _files(view: RunView) -> None:
    row = st.container(horizontal=True)
    row.download_button(
        "Download CSV",
        download(lambda: sensitivity_csv(view.result)),
        file_name="sensitivity.csv",
        mime="text/csv",
        key=f"table.csv.{view.run_id}",
        on_click="ignore",
        icon=":material/download:",
        help="One row per layer, level and metric; opens in any spreadsheet.",
    )
    row.download_button(
        "Download JSON",
        download(lambda: dumps(view.result.without_folders())),
        file_name="result.json",
        mime="application/json",
        key=f"table.json.{view.run_id}",
        on_click="ignore",
        icon=":material/download:",
        help="Everything this run found, with its settings; senseapp reads it back. Of files "
        "on this server it has the names alone.",
    )
    if can_be_distiller_csv(view.result):
        row.download_button(
            "Download Distiller CSV",
            download(lambda: write_distiller_csv(view.result)),
            file_name="distiller_sensitivity.csv",
            mime="text/csv",
            key=f"table.distiller.{view.run_id}",
            on_click="ignore",
            icon=":material/download:",
            help="Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it.",
        )
