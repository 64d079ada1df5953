"""The network in rows, coloured by sensitivity."""

from __future__ import annotations

import json
from typing import Any, cast

import altair as alt
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts.axes import EDGE_TO_EDGE, PICK, ROW_STEP, LayeredChart, outline, tooltips
from senseapp.views.palette import INK, fragility_colour

_SIZES = {"params_text": "Parameters", "macs_text": "Multiplications"}
_NAME_WIDTH, _SIZE_WIDTH = 180, 108  # pixels of the column of names, and of a column of sizes
_PLACE = alt.Y("node:N", axis=None)
_PLAIN: dict[str, Any] = {"labelOverlap": False, "labelFlush": False, "ticks": False, "domain": False}


def network_bars(
    rows: pd.DataFrame, metric: Metric, *, share_title: str, sizes: bool = True, picked: str = ""
) -> alt.LayerChart:
    """Return the visible tree, parents above their children, with parameters and MACs of each and their shares.

    ``rows`` are those of :func:`senseapp.views.frames.network.network_frame`; ``sizes`` says whether parameters
    and MACs are known. A click selects ``layer``, ``node`` and ``is_block`` of its row.
    """
    base: alt.Chart = alt.Chart(rows).encode(tooltip=network_tooltip(metric))
    names = alt.Axis(
        title=None,
        labelExpr=_text_of_node(rows, "row"),
        labelAlign="left",
        labelPadding=_NAME_WIDTH,
        labelLimit=_NAME_WIDTH - 5,
        **_PLAIN,
    )
    click = alt.selection_point(name=PICK, fields=["layer", "node", "is_block"], on="click")
    hits = base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, names), **EDGE_TO_EDGE)
    bars = base.mark_bar(minBandSize=3, stroke=INK, strokeWidth=0.5).encode(
        y=_PLACE,
        x=alt.X("share:Q", title=share_title, axis=alt.Axis(orient="top", format="%", tickCount=4)),
        color=fragility_colour(),
        description=alt.Description("description:N"),
    )
    frame = outline(rows, picked, _PLACE, field="node")
    layers = [
        hits.properties(name="hits").add_params(click),
        *(
            base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, _size_axis(rows, field, title, number)))
            for number, (field, title) in enumerate(_SIZES.items() if sizes else ())
        ),
        bars,
        frame,
    ]
    tree = LayeredChart(layer=layers, height=alt.Step(ROW_STEP)).resolve_axis(y="independent")
    return cast(alt.LayerChart, tree)


def _rows(rows: pd.DataFrame, axis: alt.Axis) -> alt.Y:
    return alt.Y("node:N", scale=alt.Scale(domain=tuple(rows["node"])), axis=axis)


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
        labelExpr=_text_of_node(rows, field),
        labelAlign="right",
        labelPadding=_SIZE_WIDTH,
        **_PLAIN,
    )


def _text_of_node(rows: pd.DataFrame, field: str) -> str:
    """Return the expression by which Vega looks up the text of each node, by the node's whole name."""
    texts = {str(node): str(text) for node, text in zip(rows["node"], rows[field], strict=True)}
    return f"({json.dumps(texts)})[datum.label]"


def network_tooltip(metric: Metric) -> list[alt.Tooltip]:
    """Return the hover text of a block or a layer: its size, and what it loses."""
    return [
        *tooltips(members="Module", kind="Kind", change_text=metric.change_title, worst_text="Most fragile layer"),
        alt.Tooltip("params:Q", title="Parameters", format=",d"),
        alt.Tooltip("param_share:Q", title="of all layers", format=".1%"),
        alt.Tooltip("macs:Q", title="Multiplications", format=".3~s"),
        alt.Tooltip("mac_share:Q", title="of all layers ", format=".1%"),
    ]
