"""The Table tab: every number, sortable and downloadable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from senseapp.app.common.download import download
from senseapp.app.common.tables import layer_columns, measurement_columns, show_table
from senseapp.app.results.view import RunView
from senseapp.core.codec import dumps
from senseapp.core.markdown import md
from senseapp.metrics import METRICS
from senseapp.server.outputs import sensitivity_csv
from senseapp.store.distiller_table import can_be_distiller_csv, write_distiller_csv
from senseapp.views.frames.levels import layer_frame, reached_note
from senseapp.views.frames.results import metrics_of

_UNKNOWN_IF_IMPORTED = ("layer_type", "low", "high", "params", "macs", "members")


def table_tab(view: RunView) -> None:
    """Show one layer in all metrics, all layers in the chosen one, and offer everything as files."""
    _one_layer(view)
    _all_layers(view)
    _files(view)


def _one_layer(view: RunView) -> None:
    """Show every metric of the picked layer at every level; without a pick, of the most fragile one."""
    layer = view.usual_layer
    rows = layer_frame(view.result, layer)
    st.markdown(md("## {} at every level", layer))
    st.caption(
        "Each row is the network with this layer alone compressed; choose another layer above. Take the strongest "
        f"level whose drop you can accept. {reached_note(view.result)}"
    )
    if rows["reason"].any():
        st.caption(md(":material/block: {}", rows["reason"].loc[lambda reason: reason != ""].iloc[0]))
    metrics = [METRICS[name] for name in metrics_of(view.result)]
    reached = bool(reached_note(view.result)) and view.result.profile.sizes_known
    show_table(
        rows,
        layer_columns(metrics, reached=reached),
        alt_text=f"All metrics of {layer} at every level",
        key=f"table.layer.{view.run_id}",
    )


def _all_layers(view: RunView) -> None:
    st.markdown(md("## All measurements of {}", view.metric.label))
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

    def offer(kind: str, name: str, make: Callable[[], str | bytes], mime: str, about: str) -> None:
        row.download_button(
            f"Download {kind}",
            download(make),
            file_name=name,
            mime=mime,
            key=f"table.{kind.split()[0].lower()}.{view.run_id}",
            on_click="ignore",
            icon=":material/download:",
            help=about,
        )

    rows_about = "One row per layer, level and metric; opens in any spreadsheet."
    offer("CSV", "sensitivity.csv", lambda: sensitivity_csv(view.result), "text/csv", rows_about)
    whole_about = (
        "Everything this run found, with its settings; senseapp reads it back. Of files on this server it has the "
        "names alone."
    )
    offer("JSON", "result.json", lambda: dumps(view.result.without_folders()), "application/json", whole_about)
    if can_be_distiller_csv(view.result):
        about = "Columns parameter, sparsity, top1, top5, loss, as Distiller writes them; the Runs page reads it."
        table = partial(write_distiller_csv, view.result)
        offer("Distiller CSV", "distiller_sensitivity.csv", table, "text/csv", about)
