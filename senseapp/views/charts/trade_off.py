"""Predicted damage against what is saved, over the whole range, with what was measured on top."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from senseapp.views.charts.axes import PICK
from senseapp.views.palette import ACCENT, CATEGORIES, INK

_LINES = {"Least damage": ACCENT, "Uniform": CATEGORIES[1], "Proportional rule": CATEGORIES[3]}
_DASHES = {"Least damage": [1, 0], "Uniform": [6, 3], "Proportional rule": [2, 2]}
_HEIGHT = 380  # legends included
_STRAIGHT = 0.1  # of the notable damage: below this the scale is straight
_MEASURED = {"Measured": "circle", "Measured after repair": "diamond", "Tried in a search": "cross"}


def trade_off_chart(
    predicted: pd.DataFrame, measured: pd.DataFrame, *, now: float, x_title: str, y_title: str, notable: float
) -> alt.LayerChart:
    """Return one line per method, a dot per measured schedule, and a rule at the present target.

    A click on a dot of the line of least damage picks its ``figure``; measured schedules are only looked at.

    Args:
        predicted: columns ``source``, ``figure``, ``damage``, ``description``.
        measured: the same, and ``low``, ``high``; may be empty.
        now: the figure of the present schedule.
        x_title: of the axis of savings.
        y_title: of the axis of damage.
        notable: damage that is worth a look; well below it the scale is straight, above it logarithmic.
    """
    sources = [name for name in _LINES if name in set(predicted["source"])]
    x = alt.X("figure:Q", title=x_title, scale=alt.Scale(zero=False))
    top = max(predicted["damage"].max(), measured["damage"].max() if len(measured) else 0.0, notable)
    scale = alt.Scale(type="symlog", constant=_STRAIGHT * notable, domain=[0, 1.05 * float(top)], nice=False)
    y = alt.Y("damage:Q", title=y_title, scale=scale, axis=alt.Axis(values=_ticks(float(top)), format="~g"))
    lines: alt.Chart = alt.Chart(predicted).encode(x=x, y=y)
    rule = alt.Chart(pd.DataFrame({"now": [now]})).mark_rule(color=INK, strokeDash=[4, 4], aria=False)
    layers = [rule.encode(x="now:Q"), _lines(lines, sources), _dots(lines)]
    if len(measured):
        present = set(measured["source"])
        names = [name for name in _MEASURED if name in present]
        layers += _measured(alt.Chart(measured).encode(x=x), y, scale, names)
    return alt.LayerChart(layer=layers, height=_HEIGHT)


def _ticks(top: float) -> list[float]:
    """Return zero and the powers of ten that fit, the four greatest."""
    greatest = math.floor(math.log10(top))
    return [0.0, *(10.0**power for power in range(greatest - 3, greatest + 1))]


def _lines(base: alt.Chart, sources: list[str]) -> Any:
    colours = alt.Scale(domain=sources, range=[_LINES[name] for name in sources])
    dashes = alt.Scale(domain=sources, range=[_DASHES[name] for name in sources])
    legend = alt.Legend(title=None, orient="top", symbolType="stroke", columns=2)
    return base.mark_line(strokeWidth=2, clip=True, aria=False).encode(
        color=alt.Color("source:N", scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("source:N", scale=dashes, legend=legend),
    )


def _dots(base: alt.Chart) -> Any:
    dots = base.transform_filter(alt.datum["source"] == "Least damage").mark_point(
        filled=True, size=70, color=ACCENT, opacity=1
    )
    dots = dots.encode(tooltip=alt.Tooltip("description:N", title="Predicted"), description="description:N")
    return dots.add_params(alt.selection_point(name=PICK, fields=["figure"], on="click"))


def _measured(base: alt.Chart, y: alt.Y, scale: alt.Scale, names: list[str]) -> list[Any]:
    whiskers = base.mark_rule(color=INK, strokeWidth=1.5, clip=True, aria=False)
    marks = base.mark_point(filled=True, size=110, color=CATEGORIES[5], opacity=1, clip=True)
    shapes = alt.Scale(domain=names, range=[_MEASURED[name] for name in names])
    legend = alt.Legend(title=None, orient="bottom", columns=1)
    return [
        whiskers.encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
        marks.encode(
            y=y,
            shape=alt.Shape("source:N", scale=shapes, legend=legend),
            tooltip=alt.Tooltip("description:N", title="Measured"),
            description="description:N",
        ),
    ]
