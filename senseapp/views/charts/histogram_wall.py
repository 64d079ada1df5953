"""Histograms of several layers side by side, and :func:`histogram`, which makes them of any network."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import altair as alt
import pandas as pd

from senseapp.core.errors import MeasurementFailed
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.spec import HistogramObjective, HistogramSpec, HistogramTensor, patterns_in
from senseapp.tasks import CLASSIFICATION
from senseapp.views.charts.axes import LayeredChart
from senseapp.views.charts.quantization_bars import SENSITIVITY_TITLES, bin_frame, histogram_chart
from senseapp.views.palette import ACCENT, SECOND
from senseapp.views.words import format as fmt

if TYPE_CHECKING:
    from senseapp.measure.histograms import Found, Images, Model

_FINEST_BITS = 4
_WIDTH, _HEIGHT = 220, 110
_COLUMNS = 4
_LONGEST_TITLE = 34


def small_histogram(histogram: QuantizationHistogram) -> alt.LayerChart:
    """Return the values on the grid as an area and their sensitivity as a line, with hardly any axes.

    Both are on scales of their own; that of the values is a square root, as in the large chart.
    """
    bins = bin_frame(histogram, finest_bits=_FINEST_BITS)
    axis = alt.Axis(title=None, tickCount=3, format=".2~g", grid=False)
    base: alt.Chart = alt.Chart(bins).encode(x=alt.X("start:Q", axis=axis, scale=alt.Scale(nice=False, zero=False)))
    root = alt.Scale(type="sqrt")
    layers = [
        base.mark_area(interpolate="step-after", color=ACCENT, aria=False).encode(
            y=alt.Y("count:Q", axis=None, scale=root)
        )
    ]
    if histogram.spec.objective != "none":
        line = base.mark_line(interpolate="step-after", color=SECOND, strokeWidth=1.2, aria=False)
        layers.append(line.encode(y=alt.Y("sensitivity:Q", axis=None)))
    chart = LayeredChart(layer=layers, height=_HEIGHT).resolve_scale(y="independent")
    return cast(alt.LayerChart, chart)


def wall_chart(histograms: Sequence[QuantizationHistogram]) -> alt.ConcatChart:
    """Return :func:`small_histogram` of each, four in a row, under the names of their layers."""
    charts = [small_histogram(each).properties(width=_WIDTH, title=_title(each)) for each in histograms]
    spec = histograms[0].spec
    title = alt.TitleParams(f"{spec.tensor} on a grid of {spec.bits} bits".capitalize(), subtitle=colours_text(spec))
    return alt.ConcatChart(concat=charts, columns=min(_COLUMNS, len(charts)), title=title)


def colours_text(spec: HistogramSpec) -> str:
    """Return what the colours of a histogram mean."""
    line = SENSITIVITY_TITLES.get(spec.objective)
    return f"Blue: values, on a square-root scale{f'; orange: {line}' if line else ''}"


def picture_of(histograms: Sequence[QuantizationHistogram]) -> alt.LayerChart | alt.ConcatChart:
    """Return the large chart of one histogram, or the wall of several."""
    return histogram_chart(histograms[0]) if len(histograms) == 1 else wall_chart(histograms)


def _title(histogram: QuantizationHistogram) -> alt.TitleParams:
    look: dict[str, Any] = {"fontSize": 11, "subtitleFontSize": 10, "anchor": "start"}
    return alt.TitleParams(_cut(histogram.spec.layer), subtitle=shares_text(histogram), **look)


def shares_text(histogram: QuantizationHistogram) -> str:
    """Return how much becomes zero and how much is clamped."""
    clamped = fmt.percent(histogram.clamped_share, digits=2)
    return f"{fmt.percent(histogram.zero_share, digits=1)} become zero, {clamped} clamped"


def _cut(name: str) -> str:
    half = _LONGEST_TITLE // 2
    return name if len(name) <= _LONGEST_TITLE else f"{name[:half]}…{name[-half:]}"


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
    made, refusals = parted(histograms_by_name(model, images, patterns_in(layers), spec, task=CLASSIFICATION))
    for refusal in refusals:
        warnings.warn(refusal, stacklevel=2)
    return Histograms(wall_frame(made), picture_of(made))


def parted(found: Found) -> tuple[list[QuantizationHistogram], list[str]]:
    """Return the histograms, and a sentence for each layer that has none; raises the first where none has one."""
    failed = [each for each in found.values() if isinstance(each, MeasurementFailed)]
    made = [each for each in found.values() if isinstance(each, QuantizationHistogram)]
    if not made:
        raise failed[0]
    return made, [str(each) for each in failed]
