"""Horizontal bars: how much each layer loses at one level.

Bars of a schedule: how much each layer is compressed.
Bars in pairs: what each layer loses on each side of a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from senseapp.app.charts.axes import (
    ROW_STEP,
    LayeredChart,
    hit_rows,
    layer_axis,
    layer_hover,
    outline,
    pick_layer,
    same_rows,
    source_opacity,
    zero_line,
)
from senseapp.app.frames.fragility import fragility_colour
from senseapp.app.frames.levels import cut_short, drop_domain
from senseapp.app.palette import CATEGORIES, INK
from senseapp.metrics import Metric

_DRAWN = (
    "row", "layer", "level_text", "drop", "low", "high", "unclear", "extreme", "source", "members", "change_text",
    "interval_text", "description", "band",
)  # fmt: skip


def sensitivity_bars(
    rows: pd.DataFrame, metric: Metric, *, x_domain: tuple[float, float], picked: str = ""
) -> alt.LayerChart:
    """Return one bar per row of :func:`senseapp.app.frames.levels.marked`, in its order.

    Colour is the row's band (:mod:`senseapp.app.frames.fragility`); whiskers are the 95 % interval; a ring at zero
    marks bars that cannot be told from zero; estimated bars are pale, and those that leave the axis end with an arrow
    and their number; words mark the largest and the smallest. A click anywhere on a row picks its layer.

    Args:
        rows: the layers, in the order to be drawn.
        metric: whose drop it is.
        x_domain: of the axis, in display units.
        picked: the layer to outline.
    """
    base: alt.Chart = alt.Chart(cut_short(rows[list(_DRAWN)], x_domain)).encode(y=same_rows())
    scale = alt.Scale(domain=list(x_domain), nice=False)
    drop = alt.X("drop:Q", title=metric.axis, scale=scale, axis=alt.Axis(orient="top"), stack=None)
    layers = [
        _bars(base, drop).encode(y=layer_axis(list(rows["row"])), color=fragility_colour()),
        _whiskers(base, scale),
        _unclear_marks(base, scale),
        _extremes(base, scale),
        zero_line(),
        outline(rows, picked, same_rows()),
        hit_rows(base, pick_layer(), tooltip=layer_hover(metric)),
    ]
    return LayeredChart(layer=layers, height=alt.Step(ROW_STEP))


def _bars(base: alt.Chart, drop: alt.X) -> alt.Chart:
    bars: alt.Chart = base.mark_bar(clip=True, stroke=INK, strokeWidth=0.5).encode(
        x=drop, opacity=source_opacity(), description=alt.Description("description:N")
    )
    return bars


def _whiskers(base: alt.Chart, scale: alt.Scale) -> alt.Chart:
    whiskers: alt.Chart = base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False).encode(
        x=alt.X("low:Q", scale=scale), x2=alt.X2("high:Q")
    )
    return whiskers


def _unclear_marks(base: alt.Chart, scale: alt.Scale) -> alt.Chart:
    unclear = base.transform_filter("datum.unclear")
    ring = unclear.mark_point(shape="circle", size=45, color=INK, strokeWidth=1.5, aria=False)
    rings: alt.Chart = ring.encode(x=alt.XDatum(0, scale=scale))
    return rings


def _extremes(base: alt.Chart, scale: alt.Scale) -> alt.Chart:
    words = base.transform_filter("datum.extreme != ''").transform_calculate(end="max(0, datum.high, datum.drop)")
    text: alt.Chart = words.mark_text(align="left", dx=8, color=INK, fontStyle="italic", aria=False).encode(
        x=alt.X("end:Q", scale=scale), text=alt.Text("extreme:N")
    )
    return text


def schedule_bars(rows: pd.DataFrame, *, title: str, largest: float) -> alt.Chart:
    """Return one bar per row of :func:`senseapp.app.frames.results.schedule_frame`, coloured by the layer's own loss.

    Args:
        rows: the layers in network order.
        title: of the amount axis, with its unit.
        largest: end of the amount axis, fixed so that bars move and the axis does not.
    """
    chart: alt.Chart = (
        alt.Chart(rows)
        .mark_bar(stroke=INK, strokeWidth=0.5)
        .encode(
            y=layer_axis(list(rows["row"])),
            x=alt.X(
                "amount:Q", title=title, axis=alt.Axis(orient="top"), scale=alt.Scale(domain=[0, largest], nice=False)
            ),
            color=fragility_colour(),
            tooltip=[
                alt.Tooltip("members:N", title="Layer"),
                alt.Tooltip("amount_text:N", title="Amount"),
                alt.Tooltip("drop_text:N", title="Measured alone"),
            ],
            description="description:N",
        )
        .properties(height=alt.Step(ROW_STEP))
    )
    return chart


_BAR_STEP = 9
_GAP = 6


def pair_step(sides: int) -> int:
    """Return the height of a layer's row, in pixels."""
    return sides * _BAR_STEP + _GAP


def side_colour(labels: Sequence[str], *, drawn: Sequence[str]) -> alt.Color:
    """Return the channel that gives each side of a comparison its colour, the same in every chart.

    Args:
        labels: of all sides, in their order.
        drawn: those in the chart; the legend names them if they are two or more.
    """
    scale = alt.Scale(domain=list(labels), range=list(CATEGORIES[: len(labels)]))
    legend = alt.Legend(orient="top", title=None, columns=1, labelLimit=420, symbolStrokeWidth=0, values=list(drawn))
    return alt.Color("side:N", scale=scale, legend=legend if len(drawn) > 1 else None)


def paired_bars(rows: pd.DataFrame, metric: Metric, *, labels: Sequence[str], picked: str = "") -> alt.LayerChart:
    """Return a bar for each side under each other, layer by layer; whiskers are 95 % intervals, estimates are pale.

    Args:
        rows: of :func:`senseapp.app.frames.comparison.pair_frame`, in the order to be drawn.
        metric: whose drop it is.
        labels: of the sides, in their order.
        picked: the layer to outline.
    """
    sort = list(dict.fromkeys(rows["row"]))
    domain = drop_domain(rows, metric)
    drawn = cut_short(rows.assign(extreme=""), domain)
    base: alt.Chart = alt.Chart(drawn).encode(
        y=layer_axis(sort), yOffset=alt.YOffset("side:N", sort=list(labels)), tooltip=_tooltip(metric)
    )
    scale = alt.Scale(domain=list(domain), nice=False)
    drop = alt.X("drop:Q", title=metric.axis, scale=scale, axis=alt.Axis(orient="top"))
    hits = base.mark_rect(opacity=0, aria=False).encode(x=alt.value(0), x2=alt.value("width"))
    bars = base.mark_bar(clip=True).encode(
        x=drop,
        color=side_colour(labels, drawn=labels),
        opacity=source_opacity(),
        description="description:N",
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False).encode(x="low:Q", x2="high:Q")
    step = alt.Step(pair_step(len(labels)), **{"for": "position"})
    layers = [hits.add_params(pick_layer()), bars, whiskers, zero_line(), outline(rows, picked, same_rows())]
    if (drawn["extreme"] != "").any():
        layers.append(_outside(base))
    return alt.LayerChart(layer=layers, height=step)


def _outside(base: alt.Chart) -> alt.Chart:
    """Write the number of each estimate whose bar leaves the axis, which is that of what is measured."""
    words = base.transform_filter("datum.extreme != ''").transform_calculate(end="max(0, datum.drop)")
    text: alt.Chart = words.mark_text(align="left", dx=4, color=INK, fontStyle="italic", aria=False)
    return text.encode(x="end:Q", text="extreme:N")


def _tooltip(metric: Metric) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("members:N", title="Layer"),
        alt.Tooltip("side:N", title="Run"),
        alt.Tooltip("change_text:N", title=metric.change_title),
        alt.Tooltip("interval_text:N", title="95 % interval"),
        alt.Tooltip("rank_text:N", title="Rank"),
        alt.Tooltip("source:N", title="Value"),
    ]
