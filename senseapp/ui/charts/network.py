"""The module tree: one bar per block and layer, as long as its share, coloured by sensitivity."""

from __future__ import annotations

import json

import altair as alt
import pandas as pd

from senseapp.ui.charts.axes import ROW_STEP, pick_layer, picked_outline
from senseapp.ui.palette import INK, MUTED, fragility_scale
from senseapp.ui.vocabulary import MetricView

__all__ = ["network_bars"]


def network_bars(rows: pd.DataFrame, metric: MetricView, *, share_title: str, picked: str = "") -> alt.LayerChart:
    """Return the visible tree, parents above their children; a click picks the layer, or a block's most fragile one.

    Args:
        rows: of :func:`senseapp.ui.network.network_frame`.
        metric: whose drop the colour is.
        share_title: of the axis of lengths.
        picked: the layer to outline.
    """
    axis = alt.Axis(
        title=None,
        labelExpr=_short_labels(rows),
        labelAlign="left",
        labelPadding=190,
        labelLimit=185,
        labelOverlap=False,
        labelFlush=False,
        ticks=False,
        domain=False,
    )
    base: alt.Chart = alt.Chart(rows).encode(
        y=alt.Y("node:N", sort=list(rows["node"]), axis=axis), tooltip=_tooltip(metric)
    )
    hits = base.mark_rect(opacity=0, aria=False).encode(x=alt.value(0), x2=alt.value("width"))
    colour = alt.condition(
        "datum.known",
        alt.Color("drop:Q", scale=fragility_scale(_largest(rows, metric)), legend=_legend(metric)),
        alt.value(MUTED),
    )
    share = alt.X("share:Q", title=share_title, axis=alt.Axis(orient="top", format="%"))
    bars = base.mark_bar(stroke=INK, minBandSize=3).encode(
        x=share, color=colour, strokeWidth=picked_outline(picked), description="description:N"
    )
    return alt.LayerChart(layer=[hits.add_params(pick_layer()), bars], height=alt.Step(ROW_STEP))


def _short_labels(rows: pd.DataFrame) -> str:
    """Show each node by its last name, indented; Vega looks it up by the node's whole name."""
    names = {str(node): str(row) for node, row in zip(rows["node"], rows["row"], strict=True)}
    return f"({json.dumps(names)})[datum.label]"


def _largest(rows: pd.DataFrame, metric: MetricView) -> float:
    return max(metric.factor * metric.notable, float(rows["drop"].max()))


def _legend(metric: MetricView) -> alt.Legend:
    return alt.Legend(title=metric.axis, orient="bottom", gradientLength=260, titleLimit=320, format=".3~g")


def _tooltip(metric: MetricView) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("node:N", title="Module"),
        alt.Tooltip("kind:N", title="Kind"),
        alt.Tooltip("layer:N", title="Most fragile layer"),
        alt.Tooltip("change_text:N", title=metric.label),
        alt.Tooltip("params:Q", title="Parameters", format=",d"),
        alt.Tooltip("param_share:Q", title="of all layers", format=".1%"),
        alt.Tooltip("macs:Q", title="MACs", format=".3~s"),
        alt.Tooltip("mac_share:Q", title="of all layers ", format=".1%"),
    ]
