"""The module tree: one bar per block and layer, as long as its share, coloured by sensitivity, with its sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import altair as alt
import pandas as pd

from senseapp.app.charts.axes import EDGE_TO_EDGE, PICK, ROW_STEP, LayeredChart, outline
from senseapp.app.frames.fragility import fragility_colour
from senseapp.app.palette import INK
from senseapp.metrics import Metric

_SIZES = {"params_text": "Parameters", "macs_text": "MACs"}
_NAME_WIDTH, _SIZE_WIDTH = 180, 108
_PLACE = alt.Y("node:N", axis=None)


def network_bars(
    rows: pd.DataFrame, metric: Metric, *, share_title: str, sizes: bool = True, picked: str = ""
) -> alt.LayerChart:
    """Return the visible tree, parents above their children, with parameters and MACs of each and their shares.

    A click selects ``layer``, ``node`` and ``is_block`` of its row.

    Args:
        rows: of :func:`senseapp.app.frames.network.network_frame`.
        metric: whose drop the colour is.
        share_title: of the axis of lengths.
        sizes: whether parameters and MACs are known.
        picked: the layer to outline.
    """
    base: alt.Chart = alt.Chart(rows).encode(tooltip=_tooltip(metric))
    names = alt.Axis(
        title=None,
        labelExpr=_looked_up(_texts(rows, "row")),
        labelAlign="left",
        labelPadding=_NAME_WIDTH,
        labelLimit=_NAME_WIDTH - 5,
        labelOverlap=False,
        labelFlush=False,
        ticks=False,
        domain=False,
    )
    columns = [
        base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, _size_axis(rows, field, title, number)))
        for number, (field, title) in enumerate(_SIZES.items() if sizes else ())
    ]
    bars = _bars(base, share_title)
    frame = outline(rows, picked, _PLACE, field="node")
    layers = [_hit_rows(base).encode(y=_rows(rows, names)), *columns, bars, frame]
    tree: alt.LayerChart = LayeredChart(layer=layers, height=alt.Step(ROW_STEP)).resolve_axis(y="independent")
    return tree


def _rows(rows: pd.DataFrame, axis: alt.Axis) -> alt.Y:
    return alt.Y("node:N", scale=alt.Scale(domain=tuple(rows["node"])), axis=axis)


def _hit_rows(base: alt.Chart) -> alt.Chart:
    """Make the whole row answer to click and hover."""
    row = base.mark_rect(opacity=0, aria=False).encode(**EDGE_TO_EDGE)
    click = alt.selection_point(name=PICK, fields=["layer", "node", "is_block"], on="click")
    hits: alt.Chart = row.properties(name="hits").add_params(click)
    return hits


def _bars(base: alt.Chart, share_title: str) -> alt.Chart:
    axis = alt.Axis(orient="top", format="%", tickCount=4)
    bars: alt.Chart = base.mark_bar(minBandSize=3, stroke=INK, strokeWidth=0.5).encode(
        y=_PLACE,
        x=alt.X("share:Q", title=share_title, axis=axis),
        color=fragility_colour(),
        description=alt.Description("description:N"),
    )
    return bars


def _size_axis(rows: pd.DataFrame, field: str, title: str, number: int) -> alt.Axis:
    """Write one column of sizes to the right of the bars."""
    return alt.Axis(
        orient="right",
        offset=number * _SIZE_WIDTH,
        title=title,
        titleAngle=0,
        titleAlign="right",
        titleAnchor="start",
        titleX=_SIZE_WIDTH,
        titleY=-14,
        labelExpr=_looked_up(_texts(rows, field)),
        labelAlign="right",
        labelPadding=_SIZE_WIDTH,
        labelOverlap=False,
        labelFlush=False,
        ticks=False,
        domain=False,
    )


def _texts(rows: pd.DataFrame, field: str) -> dict[str, str]:
    return {str(node): str(text) for node, text in zip(rows["node"], rows[field], strict=True)}


def _looked_up(texts: Mapping[str, str]) -> str:
    """Show a text for each node; Vega looks it up by the node's whole name."""
    return f"({json.dumps(texts)})[datum.label]"


def _tooltip(metric: Metric) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("node:N", title="Module"),
        alt.Tooltip("kind:N", title="Kind"),
        alt.Tooltip("change_text:N", title=metric.change_title),
        alt.Tooltip("worst_text:N", title="Most fragile layer"),
        alt.Tooltip("params:Q", title="Parameters", format=",d"),
        alt.Tooltip("param_share:Q", title="of all layers", format=".1%"),
        alt.Tooltip("macs:Q", title="MACs", format=".3~s"),
        alt.Tooltip("mac_share:Q", title="of all layers ", format=".1%"),
    ]
