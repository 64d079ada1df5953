"""Values on their quantization grid: how many in each bin, how much the bin matters, and the mean cell."""

from __future__ import annotations

import altair as alt
import pandas as pd

from senseapp.app.charts.axes import LayeredChart
from senseapp.app.palette import ACCENT, FRAGILITY, INK

_SENSITIVE = FRAGILITY[2]


def quantization_bars(
    bins: pd.DataFrame, marks: pd.DataFrame, *, x_title: str, sensitivity_title: str | None
) -> alt.LayerChart:
    """Return the values in each bin as bars and, over them with an axis on the right, how much each bin matters.

    Args:
        bins: of :func:`senseapp.app.frames.histograms.bin_frame`.
        marks: of :func:`senseapp.app.frames.histograms.mark_frame`.
        x_title: of the axis of values.
        sensitivity_title: of the axis on the right; None leaves it out.
    """
    x = alt.X("start:Q", title=x_title, scale=alt.Scale(zero=False))
    base: alt.Chart = alt.Chart(bins).encode(x=x, x2="end:Q", tooltip=_tooltip())
    height = alt.Y("count:Q", title="Values (square-root scale)", scale=alt.Scale(type="sqrt"))
    counts = base.mark_rect(color=ACCENT, aria=False).encode(y=height, y2=alt.datum(0))
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    layers: list[alt.Chart | alt.LayerChart] = [LayeredChart(layer=[counts.add_params(zoom), _rules(marks)])]
    if sensitivity_title is not None:
        matters = alt.Y("sensitivity:Q", title=sensitivity_title, axis=alt.Axis(orient="right", titleColor=_SENSITIVE))
        step = alt.Chart(bins).mark_line(interpolate="step-after", color=_SENSITIVE, strokeWidth=1.5, aria=False)
        layers.append(step.encode(x=alt.X("start:Q", title=x_title), y=matters))
    chart: alt.LayerChart = LayeredChart(layer=layers, height=340).resolve_scale(y="independent")
    return chart


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("start:Q", title="From", format=".4~g"),
        alt.Tooltip("end:Q", title="To", format=".4~g"),
        alt.Tooltip("cell:Q", title="Grid point"),
        alt.Tooltip("count:Q", title="Values", format=",.0f"),
        alt.Tooltip("sensitivity:Q", title="Sensitivity", format=".3~g"),
    ]


def _rules(marks: pd.DataFrame) -> alt.Chart:
    scale = alt.Scale(domain=["mean of a cell", "end of the true range"], range=[INK, FRAGILITY[3]])
    rules: alt.Chart = (
        alt.Chart(marks)
        .mark_rule(strokeDash=[4, 3], aria=False)
        .encode(
            x=alt.X("place:Q"),
            color=alt.Color("mark:N", scale=scale, legend=alt.Legend(orient="top", title=None)),
            tooltip=[alt.Tooltip("mark:N", title="Mark"), alt.Tooltip("place:Q", title="At", format=".4~g")],
        )
    )
    return rules


def cell_profile_chart(profile: pd.DataFrame) -> alt.Chart:
    """Return the mean distribution of values between the two edges of a cell."""
    chart: alt.Chart = (
        alt.Chart(profile)
        .mark_rect(color=ACCENT, aria=False)
        .encode(
            x=alt.X("start:Q", title="Place in the cell (steps from its grid point)"),
            x2="end:Q",
            y=alt.Y("share:Q", title="Share", axis=alt.Axis(format="%")),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("start:Q", title="From", format=".3f"), alt.Tooltip("share:Q", format=".2%")],
        )
        .properties(height=190)
    )
    return chart
