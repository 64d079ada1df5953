"""Quality against savings of compressed models: files, whole schedules, and the trade-off."""

from __future__ import annotations

import math
from typing import Any, Literal

import altair as alt
import pandas as pd

from senseapp.views.charts.axes import PICK, value_scale
from senseapp.views.charts.layers import side_colour
from senseapp.views.frames.files import OURS, UNIFORM
from senseapp.views.palette import ACCENT, CATEGORIES, DASHES, INK

_HEIGHT = 230  # pixels: low, since the answer stands above it
_AXES = {"megabytes": "Size on disk (MB)", "milliseconds": "Time of a call here (ms)"}


def _above(title: str) -> alt.Axis:
    """Return a vertical axis whose title stands above it: beside it, a low chart would cut it."""
    return alt.Axis(title=title, titleAngle=0, titleAlign="left", titleBaseline="bottom", titleX=-36, titleY=-8)


def candidates_chart(
    rows: pd.DataFrame,
    *,
    against: Literal["megabytes", "milliseconds"],
    y_title: str,
    originals: pd.DataFrame,
    picked: str = "",
) -> alt.LayerChart:
    """Return a dot with its 95 % interval for each file; what is not worth taking is pale.

    Args:
        rows: of :func:`senseapp.views.frames.files.candidates_frame`.
        against: column of the horizontal axis.
        y_title: of the vertical axis.
        originals: rows of uncompressed networks, with ``against``, ``value`` and ``description``.
        picked: ``file`` of the one that is chosen, drawn larger.
    """
    runs = list(dict.fromkeys(rows["run"]))
    shown = rows.assign(
        pale=[0.35 if beaten else 1.0 for beaten in rows["beaten"]],
        area=[260 if file == picked else 110 for file in rows["file"]],
    )
    base = alt.Chart(shown).encode(
        x=alt.X(f"{against}:Q", title=_AXES[against], scale=alt.Scale(zero=True)),
        y=alt.Y("value:Q", axis=_above(y_title), scale=value_scale(y_title, zero=False, clamp=True)),
        color=side_colour(runs, field="run"),
        opacity=alt.Opacity("pale:Q", scale=None, legend=None),
    )
    dots = base.mark_point(filled=True, stroke=INK).encode(
        size=alt.Size("area:Q", scale=None, legend=None),
        tooltip=alt.Tooltip("description:N", title="Measured"),
        description=alt.Description("description:N"),
    )
    original = (
        alt.Chart(originals)
        .mark_point(shape="cross", size=120, color=INK, filled=True)
        .encode(
            x=f"{against}:Q",
            y="value:Q",
            tooltip=alt.Tooltip("description:N", title="Original"),
            description=alt.Description("description:N"),
        )
    )
    intervals = base.mark_rule(strokeWidth=2, aria=False).encode(y="low:Q", y2="high:Q")
    return alt.LayerChart(layer=[intervals, dots, original], height=_HEIGHT)


_COLOURS = {OURS: ACCENT, UNIFORM: CATEGORIES[1]}


def recommended_chart(
    rows: pd.DataFrame, *, before: float, x_title: str, y_title: str, falling: bool
) -> alt.LayerChart:
    """Return a line with dots for each kind of schedule, and a large mark with its interval where one was proven.

    Args:
        rows: of :func:`senseapp.views.frames.files.recommended_frame`.
        before: what the uncompressed model does, drawn as a dashed line.
        x_title: of the axis of savings.
        y_title: of the axis of what the model does.
        falling: whether less is more saved, as with bits; the axis then runs from right to left.
    """
    names = [name for name in _COLOURS if name in set(rows["source"])]
    colour = alt.Color(
        "source:N",
        scale=alt.Scale(domain=names, range=[_COLOURS[name] for name in names]),
        legend=alt.Legend(title=None, orient="top", columns=1, symbolStrokeWidth=0),
    )
    base = alt.Chart(rows).encode(
        x=alt.X("figure:Q", title=x_title, scale=alt.Scale(zero=False, reverse=falling)),
        y=alt.Y("value:Q", title=y_title, scale=value_scale(y_title, zero=False, clamp=True)),
        color=colour,
    )
    dashes = alt.Chart(pd.DataFrame({"before": [before]})).mark_rule(color=INK, strokeDash=[4, 4], aria=False)
    told = {"tooltip": alt.Tooltip("description:N", title="Measured"), "description": alt.Description("description:N")}
    tried, proven = base.transform_filter("!datum.proven"), base.transform_filter("datum.proven")
    return alt.LayerChart(
        layer=[
            dashes.encode(y="before:Q"),
            tried.mark_line(strokeWidth=2, aria=False),
            tried.mark_point(filled=True, size=40, opacity=1).encode(**told),
            proven.mark_rule(strokeWidth=2, aria=False).encode(y="low:Q", y2="high:Q"),
            proven.mark_point(filled=True, size=170, opacity=1, shape="diamond", stroke=INK).encode(**told),
        ],
        height=_HEIGHT,
    )


_LINES = {"Least damage": ACCENT, "Uniform": CATEGORIES[1], "Proportional rule": CATEGORIES[3]}
_DASHES = dict(zip(_LINES, map(list, DASHES), strict=False))
_TRADE_OFF_HEIGHT = 380  # legends included
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
    return alt.LayerChart(layer=layers, height=_TRADE_OFF_HEIGHT)


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
