"""Bars in pairs: what each layer loses on each side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from senseapp.metrics import Metric
from senseapp.ui.charts.axes import layer_axis, outline, pick_layer, same_rows, source_opacity, zero_line
from senseapp.ui.level_frames import cut_short, drop_domain
from senseapp.ui.palette import CATEGORIES, INK

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
        rows: of :func:`senseapp.ui.comparison_frames.pair_frame`, in the order to be drawn.
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
