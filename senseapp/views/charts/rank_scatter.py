"""Scatter: a point for each layer, one run across and the others up; on the diagonal nothing differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from senseapp.metrics import Metric
from senseapp.views.charts.axes import pick_layer, tooltips
from senseapp.views.charts.bars import side_colour
from senseapp.views.palette import INK

_HEIGHT = 400
_NAMED = 5
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
