"""One mark per layer: bars of losses and amounts, and the scatter of ranks of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import altair as alt
import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts.axes import (
    ROW_STEP,
    LayeredChart,
    hit_rows,
    layer_axis,
    layer_hover,
    outline,
    pick_layer,
    same_rows,
    source_opacity,
    tooltips,
    zero_line,
)
from senseapp.views.frames.levels import cut_short, drop_domain
from senseapp.views.palette import CATEGORIES, INK, fragility_colour

_DRAWN = (
    "row", "layer", "level_text", "drop", "low", "high", "unclear", "extreme", "source", "members", "change_text",
    "interval_text", "description", "band",
)  # fmt: skip


def sensitivity_bars(
    rows: pd.DataFrame, metric: Metric, *, x_domain: tuple[float, float], picked: str = "", is_log: bool = False
) -> alt.LayerChart:
    """Return one bar per row of :func:`senseapp.views.frames.levels.marked`, in its order.

    Colour is the row's band (:mod:`senseapp.views.palette`); whiskers are the 95 % interval; a ring at zero
    marks bars that cannot be told from zero; estimated bars are pale, and those that leave the axis end with an arrow
    and their number; words mark the largest and the smallest. A click anywhere on a row picks its layer.
    ``x_domain`` is in display units; ``is_log`` makes the axis logarithmic beyond what is tolerable.
    """
    base: alt.Chart = alt.Chart(cut_short(rows[list(_DRAWN)], x_domain)).encode(y=same_rows())
    log: dict[str, Any] = {"type": "symlog", "constant": metric.factor * metric.notable} if is_log else {}
    scale = alt.Scale(domain=list(x_domain), nice=False, **log)
    drop = alt.X(
        "drop:Q",
        title=metric.axis,
        scale=scale,
        axis=alt.Axis(orient="top", titlePadding=4, labelPadding=2),
        stack=None,
    )
    bars = base.mark_bar(clip=True, stroke=INK, strokeWidth=0.5).encode(
        x=drop,
        y=layer_axis(list(rows["row"])),
        color=fragility_colour(),
        opacity=source_opacity(),
        description=alt.Description("description:N"),
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False)
    rings = base.transform_filter("datum.unclear").mark_point(
        shape="circle", size=45, color=INK, strokeWidth=1.5, aria=False
    )
    layers = [
        bars,
        whiskers.encode(x=alt.X("low:Q", scale=scale), x2=alt.X2("high:Q")),
        rings.encode(x=alt.XDatum(0, scale=scale)),
        _extremes(base, dx=8, end="max(0, datum.high, datum.drop)").encode(x=alt.X("end:Q", scale=scale)),
        zero_line(),
        outline(rows, picked, same_rows()),
        hit_rows(base, pick_layer(), tooltip=layer_hover(metric)),
    ]
    return LayeredChart(layer=layers, height=alt.Step(ROW_STEP))


def _extremes(base: alt.Chart, *, dx: int, end: str) -> Any:
    """Write ``extreme`` behind the ``end`` of each row that has one."""
    words = base.transform_filter("datum.extreme != ''").transform_calculate(end=end)
    text = words.mark_text(align="left", dx=dx, fontStyle="italic", aria=False)
    return text.encode(text=alt.Text("extreme:N"))


def schedule_bars(rows: pd.DataFrame, *, title: str, largest: float) -> alt.Chart:
    """Return one bar per row of :func:`senseapp.views.frames.results.schedule_frame`, coloured by the layer's own loss.

    ``largest`` is the end of the axis of amounts, fixed so that bars move and the axis does not.
    """
    scale = alt.Scale(domain=[0, largest], nice=False)
    bars = alt.Chart(rows).mark_bar(stroke=INK, strokeWidth=0.5)
    chart = bars.encode(
        y=layer_axis(list(rows["row"])),
        x=alt.X("amount:Q", title=title, axis=alt.Axis(orient="top"), scale=scale),
        color=fragility_colour(),
        tooltip=tooltips(members="Layer", amount_text="Amount", reason="Why", drop_text="Measured alone"),
        description="description:N",
    )
    return cast(alt.Chart, chart.properties(height=alt.Step(ROW_STEP)))


_BAR_STEP = 9  # pixels of one side's bar: half of a row, so that a pair takes little more than one
_GAP = 6  # pixels between the layers


def pair_step(sides: int) -> int:
    """Return the height of a layer's row, in pixels."""
    return sides * _BAR_STEP + _GAP


def side_colour(labels: Sequence[str], *, drawn: Sequence[str]) -> alt.Color:
    """Return the channel that gives each side of a comparison its colour, the same in every chart.

    Of all ``labels``, the legend names those ``drawn`` if they are two or more.
    """
    scale = alt.Scale(domain=list(labels), range=list(CATEGORIES[: len(labels)]))
    legend = alt.Legend(orient="top", title=None, columns=1, labelLimit=420, symbolStrokeWidth=0, values=list(drawn))
    return alt.Color("side:N", scale=scale, legend=legend if len(drawn) > 1 else None)


def paired_bars(rows: pd.DataFrame, metric: Metric, *, labels: Sequence[str], picked: str = "") -> alt.LayerChart:
    """Return a bar for each side under each other, layer by layer; whiskers are 95 % intervals, estimates are pale.

    ``rows`` are those of :func:`senseapp.views.frames.comparison.pair_frame`, ``labels`` those of the sides in order.
    """
    domain = drop_domain(rows, metric)
    drawn = cut_short(rows.assign(extreme=""), domain)
    base: alt.Chart = alt.Chart(drawn).encode(
        y=layer_axis(list(dict.fromkeys(rows["row"]))),
        yOffset=alt.YOffset("side:N", sort=list(labels)),
        tooltip=tooltips(
            members="Layer",
            side="Run",
            change_text=metric.change_title,
            interval_text="95 % interval",
            rank_text="Rank",
            source="Value",
        ),
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
        layers.append(_extremes(base, dx=4, end="max(0, datum.drop)").encode(x="end:Q"))
    return alt.LayerChart(layer=layers, height=step)


_HEIGHT = 400  # pixels: about as high as wide, since both axes are the same
_NAMED = 5  # points with names, those that moved most; more would cover each other
_NAME_SHARE = (0.35, 0.05)
"""Of the axes, that a name takes up."""


def rank_scatter(
    rows: pd.DataFrame, metric: Metric, *, labels: Sequence[str], ranks: bool, picked: str = ""
) -> alt.LayerChart:
    """Return the points with their intervals, the diagonal, and the names of the layers that moved most.

    ``rows`` are those of :func:`senseapp.views.frames.comparison.scatter_frame`, ``labels`` those of all sides. With
    ``ranks`` in place of values, the most fragile layers are at the upper right. The ``picked`` point is larger.
    """
    suffix = "_rank" if ranks else ""
    domain = _domain(rows, ranks=ranks)
    scale = alt.Scale(domain=domain, nice=False, reverse=ranks)
    unit = "rank, 1 is the most fragile" if ranks else metric.axis
    x = alt.X(f"x{suffix}:Q", scale=scale, title=[labels[0], unit])
    y = alt.Y(f"y{suffix}:Q", scale=scale, title=[labels[1] if len(labels) == 2 else "the other runs", unit])
    base: alt.Chart = alt.Chart(rows)
    layers: list[alt.Chart | alt.LayerChart] = [_diagonal(domain, scale)]
    if not ranks:
        layers.extend(_intervals(base, scale))
    named, middle = _apart(rows, suffix, domain), sum(domain) / 2
    right = (named[f"x{suffix}"] > middle) != ranks  # where ranks are drawn, they run from right to left
    layers += [_points(base, x, y, labels, picked), _names(named[~right], x, y), _names(named[right], x, y, left=True)]
    return alt.LayerChart(layer=layers, height=_HEIGHT)


def _domain(rows: pd.DataFrame, *, ranks: bool) -> list[float]:
    """Return the ends that both axes share, so that the diagonal is where nothing differs."""
    if ranks:
        return [0.0, max(2.0, float(rows[["x_rank", "y_rank"]].max().max()) + 1)]
    ends = rows[["x_low", "y_low", "x", "y", "x_high", "y_high"]]
    ends = ends.where(ends.abs() < float("inf"))
    low, high = min(0.0, float(ends.min().min())), max(0.0, float(ends.max().max()))
    margin = 0.04 * (high - low) or 1.0
    return [low - margin, high + margin]


def _diagonal(domain: list[float], scale: alt.Scale) -> Any:
    line = alt.Chart(pd.DataFrame({"place": domain})).mark_line(color=INK, strokeDash=[4, 3], strokeWidth=1, aria=False)
    return line.encode(x=alt.X("place:Q", scale=scale), y=alt.Y("place:Q", scale=scale))


def _intervals(base: alt.Chart, scale: alt.Scale) -> list[alt.Chart]:
    rule = base.mark_rule(color=INK, opacity=0.35, clip=True, aria=False)
    return [
        rule.encode(x=alt.X("x_low:Q", scale=scale), x2="x_high:Q", y=alt.Y("y:Q", scale=scale)),
        rule.encode(y=alt.Y("y_low:Q", scale=scale), y2="y_high:Q", x=alt.X("x:Q", scale=scale)),
    ]


def _points(base: alt.Chart, x: alt.X, y: alt.Y, labels: Sequence[str], picked: str) -> Any:
    points = base.mark_point(filled=True, opacity=0.85, clip=True).add_params(pick_layer())
    return points.encode(
        x=x,
        y=y,
        color=side_colour(labels, drawn=labels[1:]),
        size=alt.condition(alt.datum["layer"] == picked, alt.value(220), alt.value(60)),
        tooltip=tooltips(members="Layer", x_text="Across", y_text="Up", side="Up is"),
        description="description:N",
    )


def _apart(rows: pd.DataFrame, suffix: str, domain: list[float]) -> pd.DataFrame:
    """Return the rows that moved most, less those whose names would hide one of a row that moved further."""
    wide, high = (share * (domain[1] - domain[0]) for share in _NAME_SHARE)
    moved = rows[rows["shift"] > 0].sort_values("shift", ascending=False, kind="stable")
    chosen: list[int] = []
    across, up = (moved[f"{axis}{suffix}"].to_numpy(dtype=float) for axis in "xy")
    for place in range(len(moved)):
        hides = (np.abs(across[chosen] - across[place]) < wide) & (np.abs(up[chosen] - up[place]) < high)
        if not hides.any():
            chosen.append(place)
        if len(chosen) == _NAMED:
            break
    return moved.iloc[chosen]


def _names(rows: pd.DataFrame, x: alt.X, y: alt.Y, *, left: bool = False) -> Any:
    """Write the names of the points on the side where there is room for them."""
    side: dict[str, Any] = {"align": "right", "dx": -7} if left else {"align": "left", "dx": 7}
    text = alt.Chart(rows).mark_text(dy=-5, fontSize=11, aria=False, **side)
    return text.encode(x=x, y=y, text="row:N")
