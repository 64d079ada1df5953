"""Horizontal bars: how much each layer loses at one level."""

from __future__ import annotations

import altair as alt
import pandas as pd

from senseapp.metrics import Metric
from senseapp.ui.charts.axes import (
    ROW_STEP,
    hit_rows,
    layer_axis,
    layer_hover,
    outline,
    pick_layer,
    same_rows,
    source_opacity,
    zero_line,
)
from senseapp.ui.charts.layered import LayeredChart
from senseapp.ui.fragility import fragility_colour
from senseapp.ui.level_frames import cut_short
from senseapp.ui.palette import INK

_DRAWN = (
    "row", "layer", "level_text", "drop", "low", "high", "unclear", "extreme", "source", "members", "change_text",
    "interval_text", "description", "band",
)  # fmt: skip


def sensitivity_bars(
    rows: pd.DataFrame, metric: Metric, *, x_domain: tuple[float, float], picked: str = ""
) -> alt.LayerChart:
    """Return one bar per row of :func:`senseapp.ui.level_frames.marked`, in its order.

    Colour is the row's band (:mod:`senseapp.ui.fragility`); whiskers are the 95 % interval; a ring at zero marks bars
    that cannot be told from zero; estimated bars are pale, and those that leave the axis end with an arrow and their
    number; words mark the largest and the smallest. A click anywhere on a row picks its layer.

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
