"""Quality against savings of compressed models: files, whole schedules, and the trade-off."""

import math
from typing import Literal

import altair as alt
import pandas as pd

from senseapp.views.charts.axes import PICK, value_scale
from senseapp.views.charts.layers import side_scale
from senseapp.views.frames.files import OURS, PROPORTIONAL, RUNS, UNIFORM
from senseapp.views.palette import ACCENT, CATEGORIES, DASHES, INK

_HEIGHT = 230  # pixels: low, since the answer stands above it
_TICKS = 5  # about so many: where labels have no room, Vega leaves out every second one, also the last
_AXES = {
    "megabytes": alt.Axis(  # sizes in the units of the words beside it
        title="Size on disk",
        labelExpr="!datum.value ? '0' : datum.value < 1 ? format(1e3 * datum.value, '~g') + ' kB' : "
        "datum.label + ' MB'",
    ),
    "milliseconds": alt.Axis(title="Time of a call here (ms)"),
    "times": alt.Axis(title="Time of a call here (× the original's)"),
}


def candidates_chart(
    rows: pd.DataFrame,
    *,
    against: Literal["megabytes", "milliseconds", "times"],
    y_title: str,
    originals: pd.DataFrame,
    picked: str = "",
) -> alt.LayerChart:
    """Return a mark with its 95 % interval for each file: a triangle for weights; what is not worth taking is pale.

    Args:
        rows: of :func:`senseapp.views.frames.files.candidates_frame`.
        against: column of the horizontal axis; ``times`` has intervals too.
        y_title: of the vertical axis.
        originals: rows of uncompressed networks, with ``against``, ``value`` and ``description``.
        picked: ``file`` of the one that is chosen, drawn larger.
    """
    runs, has_weights = list(dict.fromkeys(rows["run"])), RUNS[False] in set(rows["runs"])
    shown = rows.assign(
        pale=[0.35 if beaten else 1.0 for beaten in rows["beaten"]],
        area=[260 if file == picked else 110 for file in rows["file"]],
    )
    values = pd.concat([shown["low"], shown["high"], shown["value"], originals["value"]])
    ends = [float(values.min()), float(values.max())]
    # its title above it: beside it, a low chart would cut it
    axis = alt.Axis(
        tickCount=_TICKS, title=y_title, titleAngle=0, titleAlign="left", titleBaseline="bottom", titleX=-36, titleY=-8
    )
    axis.labelExpr = "format(datum.value, '~r')"  # of one value, Vega would write 100.000000
    legend = alt.Legend(orient="top", title=None, columns=1, labelLimit=420, symbolStrokeWidth=0)
    shapes = alt.Scale(domain=RUNS[::-1], range=["circle", "triangle-up"])
    kinds = alt.Legend(orient="top", title=None, symbolFillColor=INK, symbolOpacity=1, symbolStrokeWidth=0, offset=24)
    across = alt.Scale(zero=True)
    if against == "times":  # an interval that says nothing would leave no room for the others
        across = alt.Scale(domain=[0, 1.25 * max(1.0, float(shown["times"].max()))], clamp=True)
    base = alt.Chart(shown).encode(
        x=alt.X(f"{against}:Q", axis=_AXES[against], scale=across),
        y=alt.Y("value:Q", axis=axis, scale=value_scale(y_title, domain=ends, nice=_TICKS, zero=False, clamp=True)),
        color=alt.Color("run:N", scale=side_scale(runs), legend=legend if len(runs) > 1 else None),
        opacity=alt.Opacity("pale:Q", scale=None, legend=None),
    )
    dots = base.mark_point(filled=True, stroke=INK).encode(
        size=alt.Size("area:Q", scale=None, legend=None),
        shape=alt.Shape("runs:N", scale=shapes, legend=kinds if has_weights else None),
        tooltip=alt.Tooltip("description:N", title="Measured"),
        description=alt.Description("description:N"),
    )
    crosses = alt.Chart(originals).mark_point(shape="cross", size=120, color=INK, filled=True)
    told = {"tooltip": alt.Tooltip("description:N", title="Original"), "description": "description:N"}
    rule = base.mark_rule(strokeWidth=2, aria=False)
    layers = [rule.encode(y="low:Q", y2="high:Q"), dots, crosses.encode(x=f"{against}:Q", y="value:Q", **told)]
    if against == "times":
        layers.insert(0, rule.encode(x="times_low:Q", x2="times_high:Q"))
    return alt.LayerChart(layer=layers, height=_HEIGHT + 40 * has_weights)  # with the legend


_MODELS = {
    OURS: (ACCENT, DASHES[0], "diamond"),
    UNIFORM: (CATEGORIES[1], DASHES[1], "diamond"),
    PROPORTIONAL: (CATEGORIES[3], DASHES[2], "diamond"),
    "Measured": (CATEGORIES[5], DASHES[0], "circle"),
    "Tried in a search": (CATEGORIES[7], DASHES[0], "cross"),
}
"""Colour, dashes of the line, and shape of marks of each source."""


def models_chart(
    rows: pd.DataFrame,
    *,
    x_title: str,
    y: alt.Y,
    rule: dict[str, float],
    falling: bool = False,
    picks: str = "",
    height: int = _HEIGHT,
) -> alt.LayerChart:
    """Return a line with dots for each source of compressed models, and a mark with its interval for whole ones.

    Args:
        rows: of :func:`senseapp.views.frames.files.recommended_frame`, or of those beside it.
        x_title: of the axis of savings.
        y: the channel of ``value``.
        rule: a dashed line at a place on ``x`` or ``y``.
        falling: whether less is more saved, as with bits; the axis then runs from right to left.
        picks: the source whose dots pick their ``figure`` on a click.
        height: in pixels.
    """
    names = [name for name in _MODELS if name in set(rows["source"])]
    colours, dashes, shapes = zip(*(_MODELS[name] for name in names), strict=True)
    legend = alt.Legend(title=None, orient="top", columns=2, symbolStrokeWidth=0)
    base = alt.Chart(rows).encode(
        x=alt.X("figure:Q", title=x_title, scale=alt.Scale(zero=False, reverse=falling)),
        y=y,
        color=alt.Color("source:N", scale=alt.Scale(domain=names, range=list(colours)), legend=legend),
    )
    told = {"tooltip": alt.Tooltip("description:N", title="Model"), "description": alt.Description("description:N")}
    drawn, whole = base.transform_filter("!datum.whole"), base.transform_filter("datum.whole")
    shape = alt.Shape("source:N", scale=alt.Scale(domain=names, range=list(shapes)), legend=legend)
    dash = alt.StrokeDash(
        "source:N", scale=alt.Scale(domain=names, range=[list(each) for each in dashes]), legend=legend
    )
    dots = drawn.mark_point(filled=True, size=50, opacity=1).encode(**told)
    line = alt.Chart(pd.DataFrame([rule])).mark_rule(color=INK, strokeDash=[4, 4], aria=False)
    if picks:
        dots = dots.add_params(alt.selection_point(name=PICK, fields=["figure"], on="click"))
        dots = dots.transform_filter(alt.datum["source"] == picks)
    layers = [
        line.encode(**{axis: f"{axis}:Q" for axis in rule}),
        drawn.mark_line(strokeWidth=2, aria=False).encode(strokeDash=dash),
        dots,
    ]
    if rows["whole"].any():  # marks of no rows would have a scale without ends
        layers += [
            whole.mark_rule(strokeWidth=2, aria=False).encode(y="low:Q", y2="high:Q"),
            whole.mark_point(filled=True, size=150, opacity=1, stroke=INK).encode(shape=shape, **told),
        ]
    return alt.LayerChart(layer=layers, height=height)


def damage_channel(rows: pd.DataFrame, title: str, notable: float) -> alt.Y:
    """Return the channel of predicted damage: straight well below ``notable``, the damage worth a look, then log."""
    top = max(float(rows["value"].max()), notable)
    greatest = math.floor(math.log10(top))
    ticks = [0.0, *(10.0**power for power in range(greatest - 3, greatest + 1))]
    scale = alt.Scale(type="symlog", constant=0.1 * notable, domain=[0, 1.05 * top], nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(values=ticks, format=".6~g"))


def value_channel(title: str) -> alt.Y:
    """Return the channel of what models still do."""
    return alt.Y("value:Q", title=title, scale=value_scale(title, zero=False, clamp=True))
