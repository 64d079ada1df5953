"""The graph in which the layers of a network run: boxes and lines, coloured by sensitivity."""

from __future__ import annotations

from typing import Any, cast

import altair as alt
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts.axes import PICK, LayeredChart
from senseapp.views.charts.network import network_tooltip
from senseapp.views.frames.fragility import fragility_colour
from senseapp.views.palette import INK

_LEAST_WIDTH = 1.7  # columns across the chart: the boxes of a narrow network are no wider than their names need
_FONT_SHARE, _LARGEST_FONT = 0.42, 13  # of the height of a row; pixels
_LEAST_FONT = 7  # below that, names are left out
_TWO_LINES = 40  # pixels of a row in which the loss stands below the name


def flow_graph(
    rows: pd.DataFrame, edges: pd.DataFrame, metric: Metric, *, step: float, width: float, picked: str = ""
) -> alt.LayerChart:
    """Return the graph from top to bottom, as :mod:`senseapp.views.frames.flow` lays it out.

    A click selects ``layer`` of its box. The wheel zooms while Ctrl is held, and so does a pinch; dragging moves the
    graph while Shift is held.

    Args:
        rows: of :func:`senseapp.views.frames.flow.flow_frame`.
        edges: of :func:`senseapp.views.frames.flow.flow_edges`.
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
