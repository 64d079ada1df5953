"""Quantization histograms, as data frames and as charts: values on their grid, how much they matter, the mean cell."""

from __future__ import annotations

import math
from typing import Any, cast

import altair as alt
import pandas as pd

from senseapp.records.histogram import QuantizationHistogram
from senseapp.views.charts.axes import LayeredChart
from senseapp.views.palette import ACCENT, FRAGILITY, INK, SECOND

SENSITIVITY_TITLES = {
    "output": "|gradient| of the score",
    "loss": "|gradient| of the loss",
    "mean": "|gradient| of the mean output",
}
_FINEST_BITS = 5
_MARKED_CELLS = 31  # beyond it, marks at every mean would hide the bars


def bin_frame(
    histogram: QuantizationHistogram, *, every_bin: bool = False, finest_bits: int = _FINEST_BITS
) -> pd.DataFrame:
    """Return one row per bin: its cell, ends, number of values, gradient sum and sensitivity.

    Columns are ``cell``, ``start``, ``end``, ``count``, ``gradient_sum`` and ``sensitivity``. Ends are values where one
    scale holds for all, else steps from the value 0. For a chart, bins of more than 5 bits are added up so that about
    500 are left, with fewer ``finest_bits`` fewer; ``every_bin`` keeps them.
    """
    merged = 1 if every_bin else min(histogram.sub_bins, 2 ** max(0, histogram.spec.bits - finest_bits))
    sums = {"gradient_sum": histogram.gradient_sums, "sensitivity": histogram.gradient_magnitudes}
    frame = pd.DataFrame({"count": histogram.counts, **sums})
    frame = frame.groupby(frame.index // merged).sum()
    width = merged / histogram.sub_bins
    starts = [-0.5 + index * width for index in range(len(frame))]
    frame.insert(0, "cell", [int(start + 0.5) - histogram.zero_cell for start in starts])
    frame.insert(1, "start", [_shown(histogram, start) for start in starts])
    frame.insert(2, "end", [_shown(histogram, start + width) for start in starts])
    return frame


def mark_frame(histogram: QuantizationHistogram) -> pd.DataFrame:
    """Return the means of the cells, where they are few, and the ends of the true range, where there is one scale.

    Columns are ``place`` and ``mark``, which says what is there.
    """
    means = [place for place in histogram.centroids if not math.isnan(place)]
    rows = [{"place": _shown(histogram, place), "mark": "mean of a cell"} for place in means]
    rows = rows if histogram.cells <= _MARKED_CELLS else []
    if not math.isnan(histogram.scale):
        rows += [{"place": end, "mark": "end of the true range"} for end in (histogram.low, histogram.high)]
    return pd.DataFrame(rows, columns=["place", "mark"])


def profile_frame(histogram: QuantizationHistogram, *, sensitivity: bool = False) -> pd.DataFrame:
    """Return the mean distribution inside a cell: ``start`` and ``end`` in steps from the grid point, and ``share``.

    It is that of the values, or of their ``sensitivity``.
    """
    width = 1 / histogram.sub_bins
    starts = [-0.5 + index * width for index in range(histogram.sub_bins)]
    share = histogram.sensitivity_profile if sensitivity else histogram.profile
    return pd.DataFrame({"start": starts, "end": [start + width for start in starts], "share": share})


def _shown(histogram: QuantizationHistogram, place: float) -> float:
    value = histogram.value_at(place)
    return place - histogram.zero_cell if math.isnan(value) else value


def histogram_chart(histogram: QuantizationHistogram) -> alt.LayerChart:
    """Return :func:`quantization_bars` of ``histogram`` with the titles of its axes."""
    per_channel = math.isnan(histogram.scale)
    return quantization_bars(
        bin_frame(histogram),
        mark_frame(histogram),
        x_title="Place on the channel's grid (steps from 0)" if per_channel else "Value",
        sensitivity_title=SENSITIVITY_TITLES.get(histogram.spec.objective),
    )


def quantization_bars(
    bins: pd.DataFrame, marks: pd.DataFrame, *, x_title: str, sensitivity_title: str | None
) -> alt.LayerChart:
    """Return the values in each bin as bars and, over them with an axis on the right, how much each bin matters.

    Without a ``sensitivity_title`` the second axis is left out.
    """
    x = alt.X("start:Q", title=x_title, scale=alt.Scale(zero=False))
    base: alt.Chart = alt.Chart(bins).encode(x=x, x2="end:Q", tooltip=_tooltip())
    height = alt.Y("count:Q", title="Values (square-root scale)", scale=alt.Scale(type="sqrt"))
    counts = base.mark_rect(color=ACCENT, aria=False).encode(y=height, y2=alt.datum(0))
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    layers: list[alt.Chart | alt.LayerChart] = [LayeredChart(layer=[counts.add_params(zoom), _rules(marks)])]
    if sensitivity_title is not None:
        matters = alt.Y("sensitivity:Q", title=sensitivity_title, axis=alt.Axis(orient="right"))
        step = alt.Chart(bins).mark_line(interpolate="step-after", color=SECOND, strokeWidth=1.5, aria=False)
        layers.append(step.encode(x=alt.X("start:Q", title=x_title), y=matters))
    return cast(alt.LayerChart, LayeredChart(layer=layers, height=340).resolve_scale(y="independent"))


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("start:Q", title="From", format=".4~g"),
        alt.Tooltip("end:Q", title="To", format=".4~g"),
        alt.Tooltip("cell:Q", title="Grid point"),
        alt.Tooltip("count:Q", title="Values", format=",.0f"),
        alt.Tooltip("sensitivity:Q", title="Sensitivity", format=".3~g"),
    ]


def _rules(marks: pd.DataFrame) -> Any:
    scale = alt.Scale(domain=["mean of a cell", "end of the true range"], range=[INK, FRAGILITY[3]])
    return (
        alt.Chart(marks)
        .mark_rule(strokeDash=[4, 3], aria=False)
        .encode(
            x=alt.X("place:Q"),
            color=alt.Color("mark:N", scale=scale, legend=alt.Legend(orient="top", title=None)),
            tooltip=[alt.Tooltip("mark:N", title="Mark"), alt.Tooltip("place:Q", title="At", format=".4~g")],
        )
    )


def cell_profile_chart(profile: pd.DataFrame, *, sensitivity: bool = False) -> alt.Chart:
    """Return the mean distribution of values, or of their ``sensitivity``, between the two edges of a cell."""
    chart = (
        alt.Chart(profile)
        .mark_rect(color=SECOND if sensitivity else ACCENT, aria=False)
        .encode(
            x=alt.X("start:Q", title="Place in the cell (steps from its grid point)"),
            x2="end:Q",
            y=alt.Y("share:Q", title="Share", axis=alt.Axis(format="%")),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("start:Q", title="From", format=".3f"), alt.Tooltip("share:Q", format=".2%")],
        )
        .properties(height=190)
    )
    return cast(alt.Chart, chart)
