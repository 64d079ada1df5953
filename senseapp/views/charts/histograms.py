"""Quantization histograms as frames and charts, one large or several side by side; :func:`histogram` makes them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import altair as alt
import pandas as pd

from senseapp.core.errors import MeasurementFailed
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor, patterns_in
from senseapp.tasks import CLASSIFICATION
from senseapp.views.charts.axes import LayeredChart
from senseapp.views.palette import ACCENT, FRAGILITY, INK, SECOND
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.measure.histograms import Found, Images, Model


SENSITIVITY_TITLES = {
    "output": "|gradient| of the score",
    "loss": "|gradient| of the loss",
    "mean": "|gradient| of the mean output",
}
_FINEST_BITS = 5  # 512 bins: finer ones would be about a pixel wide


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
    rows = rows if histogram.cells <= 31 else []  # beyond it, marks at every mean would hide the bars
    if not math.isnan(histogram.scale):
        rows += [{"place": end, "mark": "end of the true range"} for end in (histogram.low, histogram.high)]
    return pd.DataFrame(rows, columns=["place", "mark"])


def _shown(histogram: QuantizationHistogram, place: float) -> float:
    value = (place - histogram.zero_cell) * histogram.scale  # NaN where each channel has its own scale
    return place - histogram.zero_cell if math.isnan(value) else value


def histogram_chart(histogram: QuantizationHistogram) -> alt.LayerChart:
    """Return the values in each bin as bars and, with an objective, how much each matters on an axis to the right."""
    x_title = "Place on the channel's grid (steps from 0)" if math.isnan(histogram.scale) else "Value"
    bins, sensitivity_title = bin_frame(histogram), SENSITIVITY_TITLES.get(histogram.spec.objective)
    x = alt.X("start:Q", title=x_title, scale=alt.Scale(zero=False))
    hover = [
        alt.Tooltip("start:Q", title="From", format=".4~g"),
        alt.Tooltip("end:Q", title="To", format=".4~g"),
        alt.Tooltip("cell:Q", title="Grid point"),
        alt.Tooltip("count:Q", title="Values", format=",.0f"),
        alt.Tooltip("sensitivity:Q", title="Sensitivity", format=".3~g"),
    ]
    base: alt.Chart = alt.Chart(bins).encode(x=x, x2="end:Q", tooltip=hover)
    height = alt.Y("count:Q", title="Values (square-root scale)", scale=alt.Scale(type="sqrt"))
    counts = base.mark_rect(color=ACCENT, aria=False).encode(y=height, y2=alt.datum(0))
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    layers: list[alt.Chart | alt.LayerChart] = [
        LayeredChart(layer=[counts.add_params(zoom), _rules(mark_frame(histogram))])
    ]
    if sensitivity_title is not None:
        matters = alt.Y("sensitivity:Q", title=sensitivity_title, axis=alt.Axis(orient="right"))
        step = alt.Chart(bins).mark_line(interpolate="step-after", color=SECOND, strokeWidth=1.5, aria=False)
        layers.append(step.encode(x=alt.X("start:Q", title=x_title), y=matters))
    return cast(alt.LayerChart, LayeredChart(layer=layers, height=340).resolve_scale(y="independent"))


def _rules(marks: pd.DataFrame) -> Any:
    scale = alt.Scale(domain=["mean of a cell", "end of the true range"], range=[INK, FRAGILITY[3]])
    colour = alt.Color("mark:N", scale=scale, legend=alt.Legend(orient="top", title=None))
    told = [alt.Tooltip("mark:N", title="Mark"), alt.Tooltip("place:Q", title="At", format=".4~g")]
    rules = alt.Chart(marks).mark_rule(strokeDash=[4, 3], aria=False)
    return rules.encode(x=alt.X("place:Q"), color=colour, tooltip=told)


def small_histogram(histogram: QuantizationHistogram) -> alt.LayerChart:
    """Return the values on the grid as an area and their sensitivity as a line, with hardly any axes.

    Both are on scales of their own; that of the values is a square root, as in the large chart.
    """
    bins = bin_frame(histogram, finest_bits=4)  # 256 bins, about one for each pixel
    axis = alt.Axis(title=None, tickCount=3, format=".2~g", grid=False)
    base: alt.Chart = alt.Chart(bins).encode(x=alt.X("start:Q", axis=axis, scale=alt.Scale(nice=False, zero=False)))
    layers = [
        base.mark_area(interpolate="step-after", color=ACCENT, aria=False).encode(
            y=alt.Y("count:Q", axis=None, scale=alt.Scale(type="sqrt"))
        )
    ]
    if histogram.spec.objective != "none":
        line = base.mark_line(interpolate="step-after", color=SECOND, strokeWidth=1.2, aria=False)
        layers.append(line.encode(y=alt.Y("sensitivity:Q", axis=None)))
    return cast(alt.LayerChart, LayeredChart(layer=layers, height=110).resolve_scale(y="independent"))


def wall_chart(histograms: Sequence[QuantizationHistogram]) -> alt.ConcatChart:
    """Return :func:`small_histogram` of each, four in a row, under the names of their layers."""
    look: dict[str, Any] = {"fontSize": 11, "subtitleFontSize": 10, "anchor": "start"}
    titles = [
        alt.TitleParams(fmt.cut_middle(each.spec.layer, 34), subtitle=shares_text(each), **look) for each in histograms
    ]
    charts = [
        small_histogram(each).properties(width=220, title=title) for each, title in zip(histograms, titles, strict=True)
    ]
    spec = histograms[0].spec
    title = alt.TitleParams(f"{spec.tensor} on a grid of {spec.bits} bits".capitalize(), subtitle=colours_text(spec))
    return alt.ConcatChart(concat=charts, columns=min(4, len(charts)), title=title)


def colours_text(spec: HistogramSpec) -> str:
    """Return the meaning of the colours of a histogram."""
    line = SENSITIVITY_TITLES.get(spec.objective)
    return f"Blue: values, on a square-root scale{f'; orange: {line}' if line else ''}"


def picture_of(histograms: Sequence[QuantizationHistogram]) -> alt.LayerChart | alt.ConcatChart:
    """Return the large chart of one histogram, or the wall of several."""
    return histogram_chart(histograms[0]) if len(histograms) == 1 else wall_chart(histograms)


def shares_text(histogram: QuantizationHistogram) -> str:
    """Return how much becomes zero and how much is clamped."""
    clamped = fmt.percent(histogram.clamped_share, digits=2)
    return f"{fmt.percent(histogram.zero_share, digits=1)} become zero, {clamped} clamped"


def wall_frame(histograms: Sequence[QuantizationHistogram]) -> pd.DataFrame:
    """Return every bin of every layer, its name in ``layer``; other columns as in :func:`bin_frame`."""
    frames = [bin_frame(each, every_bin=True) for each in histograms]
    return pd.concat(frames, keys=[each.spec.layer for each in histograms], names=["layer"]).reset_index(level="layer")


class Histograms(NamedTuple):
    """What :func:`histogram` returns.

    Attributes:
        frame: a row for each bin of each layer: ``layer``, ``cell`` (steps from the grid point of 0), ``start`` and
            ``end`` (in values; with one scale per channel in steps), ``count``, ``gradient_sum`` and ``sensitivity``,
            the sum of the gradient's magnitude.
        chart: of one layer, or of several side by side.
    """

    frame: pd.DataFrame
    chart: alt.LayerChart | alt.ConcatChart


def histogram(
    model: Model,
    images: Images,
    layers: str | Sequence[str] = "*",
    *,
    bits: int = 8,
    tensor: HistogramTensor = "weights",
    per_channel: bool = False,
    fold: bool = False,
    objective: HistogramObjective = "output",
    num_images: int = 64,
) -> Histograms:
    """Return histograms of layers' values on their quantization grid, with how much each place on it matters.

    Args:
        model: a classifier; it comes back as it was.
        images: prepared, (N, C, H, W); a pair with labels (N,); or batches of either, as a ``DataLoader`` gives them.
        layers: names or patterns, by commas or in a list: ``conv*``, ``layer1.*``.
        bits: of the grid, 2 to 8.
        tensor: ``weights``, ``activations`` that layers take in, or ``outputs`` that they return.
        per_channel: one scale per channel rather than one for the tensor.
        fold: whether a BatchNorm that follows is first folded into each layer, in a copy of the model.
        objective: what is back-propagated: each image's highest score (``output``), its ``loss`` with the label, the
            ``mean`` of its outputs, or ``none``.
        num_images: most images to look at.

    Layers that have no histogram, because they never run or hold values that are not finite, are told in a warning.

    Raises:
        InvalidInput: a setting is out of range, no layer matches, or the model or the images cannot be used.
        MeasurementFailed: none of the layers has a histogram.
    """
    from senseapp.measure.histograms import histograms_by_name  # torch loads here, not when the app starts

    spec = HistogramSpec(
        layer="", tensor=tensor, bits=bits, per_channel=per_channel, fold=fold, objective=objective,
        num_images=num_images,
    )  # fmt: skip
    finished, refusals = parted(histograms_by_name(model, images, patterns_in(layers), spec, task=CLASSIFICATION))
    for refusal in refusals:
        warnings.warn(refusal, stacklevel=2)
    return Histograms(wall_frame(finished), picture_of(finished))


def parted(found: Found) -> tuple[list[QuantizationHistogram], list[str]]:
    """Return the histograms, and a sentence for each layer that has none; raises the first where none has one."""
    failed = [each for each in found.values() if isinstance(each, MeasurementFailed)]
    finished = [each for each in found.values() if isinstance(each, QuantizationHistogram)]
    if not finished:
        raise failed[0]
    return finished, [str(each) for each in failed]
