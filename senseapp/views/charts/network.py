"""The network in rows or as the graph in which its layers run, coloured by sensitivity."""

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
        *(_size_columns(base, rows) if sizes else ()),
        bars,
        frame,
    ]
    tree = LayeredChart(layer=layers, height=alt.Step(ROW_STEP)).resolve_axis(y="independent")
    return cast(alt.LayerChart, tree)


def _rows(rows: pd.DataFrame, axis: alt.Axis) -> alt.Y:
    return alt.Y("node:N", scale=alt.Scale(domain=tuple(rows["node"])), axis=axis)


def _size_columns(base: alt.Chart, rows: pd.DataFrame) -> list[alt.Chart]:
    return [
        base.mark_rect(opacity=0, aria=False).encode(y=_rows(rows, _size_axis(rows, field, title, number)))
        for number, (field, title) in enumerate(_SIZES.items())
    ]


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


_LEAST_WIDTH = 1.7  # columns across the chart: the boxes of a narrow network are no wider than their names need
_FONT_SHARE, _LARGEST_FONT = 0.42, 13  # of the height of a row; pixels
_LEAST_FONT = 7  # below that, names are left out
_TWO_LINES = 40  # pixels of a row in which the loss stands below the name


def flow_graph(
    rows: pd.DataFrame, edges: pd.DataFrame, metric: Metric, *, step: float, width: float, picked: str = ""
) -> alt.LayerChart:
    """Return the graph from top to bottom, as :mod:`senseapp.views.frames.network` lays it out.

    A click selects ``layer`` of its box. The wheel zooms while Ctrl is held, and so does a pinch; dragging moves the
    graph while Shift is held.

    Args:
        rows: of :func:`senseapp.views.frames.network.flow_frame`.
        edges: of :func:`senseapp.views.frames.network.flow_edges`.
        metric: whose rows they are.
        step: height of a row of boxes, in pixels.
        width: of the graph, in columns of boxes.
        picked: layer that is outlined.
    """
    num_ranks = int(rows["rank"].max()) + 1
    x = alt.Scale(domain=(-0.5, max(width, _LEAST_WIDTH) - 0.5), nice=False, zero=False)
    y = alt.Scale(domain=(-0.5, num_ranks - 0.5), nice=False, zero=False, reverse=True)
    font = min(_LARGEST_FONT, _FONT_SHARE * step)
    base: alt.Chart = alt.Chart(rows).encode(tooltip=network_tooltip(metric))
    box: dict[str, Any] = {
        "x": alt.X("x0:Q", axis=None, scale=x),
        "x2": "x1",
        "y": alt.Y("y0:Q", axis=None, scale=y),
        "y2": "y1",
    }
    click = alt.selection_point(name=PICK, fields=["layer"], on="click")
    zoom = alt.selection_interval(
        name="zoom",
        bind="scales",
        zoom="wheel![event.ctrlKey || event.metaKey]",
        translate="[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!",
    )
    boxes = base.mark_rect(cornerRadius=4, stroke=INK, strokeWidth=1).encode(
        **box, color=fragility_colour(), description=alt.Description("description:N")
    )
    shares = (
        alt.Chart(rows[rows["macs"] > 0])
        .mark_rect(aria=False, tooltip=None)
        .encode(
            x=alt.X("x0:Q", axis=None),
            x2="bar",
            y=alt.Y("bar_top:Q", axis=None),
            y2="y1",
            color=alt.Color("ink:N", scale=None),
            opacity=alt.value(0.45),
        )
    )
    own = rows.loc[(rows["layer"] == picked) & (rows["layer"] != "")]
    frame = alt.Chart(own).mark_rect(filled=False, stroke=INK, strokeWidth=4, cornerRadius=4, aria=False, tooltip=None)
    layers = [
        _lines(edges),
        _heads(edges, step),
        boxes.add_params(click, zoom),
        shares,
        frame.encode(**box),
        *(_texts(rows, font, two_lines=step >= _TWO_LINES) if font >= _LEAST_FONT else ()),
    ]
    graph = LayeredChart(layer=layers, height=round(step * num_ranks)).resolve_scale(color="independent")
    return cast(alt.LayerChart, graph)


def _lines(edges: pd.DataFrame) -> alt.Chart:
    lines = alt.Chart(edges).mark_line(stroke=INK, strokeWidth=1.5, strokeJoin="round", aria=False, tooltip=None)
    return cast(
        alt.Chart,
        lines.encode(
            x=alt.X("x:Q", axis=None),
            y=alt.Y("rank:Q", axis=None),
            detail=alt.Detail("edge:N"),
            order=alt.Order("step:Q"),
        ),
    )


def _heads(edges: pd.DataFrame, step: float) -> alt.Chart:
    ends = alt.Chart(edges[edges["head"] != ""])
    marks = ends.mark_point(filled=True, color=INK, opacity=1, size=min(45.0, 1.5 * step), aria=False, tooltip=None)
    return cast(
        alt.Chart,
        marks.encode(
            x=alt.X("x:Q", axis=None), y=alt.Y("rank:Q", axis=None), shape=alt.Shape("head:N", scale=None, legend=None)
        ),
    )


def _texts(rows: pd.DataFrame, font: float, *, two_lines: bool) -> list[alt.Chart]:
    """Return the names, cut at their beginning where the box is too narrow, and on request the losses below them.

    Names in boxes without a colour have that of the theme's text. Without a hover text, the pointer passes through
    them to the boxes.
    """
    room = alt.ExprRef("abs(scale('x', datum.x1) - scale('x', datum.x0)) - 8")
    look: dict[str, Any] = {"limit": room, "dir": "rtl", "aria": False, "tooltip": None, "baseline": "middle"}
    place: dict[str, Any] = {"x": alt.X("x:Q", axis=None), "y": alt.Y("rank:Q", axis=None)}
    painted, empty = (alt.Chart(rows[rows["known"] == known]) for known in (True, False))
    ink = alt.Color("ink:N", scale=None)
    above = alt.ExprRef(f"datum.change_text ? {-0.55 * font} : 0") if two_lines else 0
    name = alt.Text("members:N")
    found = [
        empty.mark_text(fontSize=font, **look).encode(**place, text=name),
        painted.mark_text(fontSize=font, dy=above, **look).encode(**place, color=ink, text=name),
    ]
    if two_lines:
        losses = painted.mark_text(fontSize=font - 2, dy=0.6 * font, **look)
        found.append(losses.encode(**place, color=ink, text=alt.Text("change_text:N")))
    return found
