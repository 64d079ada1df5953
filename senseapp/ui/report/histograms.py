"""The quantization histograms of a report: those that somebody looked at in the app."""

from __future__ import annotations

import math
from collections.abc import Sequence

from senseapp.results.histogram import QuantizationHistogram
from senseapp.ui import format as fmt
from senseapp.ui.charts import quantization_bars
from senseapp.ui.histogram_frames import bin_frame, mark_frame
from senseapp.ui.report.chart_data import ChartData
from senseapp.ui.report.figures import Drawing, Figure, drawn

_SENSITIVITY = {"output": "|gradient| of the score", "loss": "|gradient| of the loss"}


def histogram_figures(histograms: Sequence[QuantizationHistogram], data: ChartData) -> tuple[Figure, ...]:
    """Return one figure with all histograms to choose from; none where nobody looked at any."""
    drawings = tuple(_drawing(histogram, data) for histogram in histograms)
    figure = Figure(
        question="Where do the values lie on the quantization grid, and which of them matter?",
        reading="Bars count the values in each bin; the line is how much the network's output hangs on them. Dashed "
        "lines are the mean of each cell, and in red the true range.",
        drawings=drawings,
        what="Histogram",
    )
    return (figure,) if drawings else ()


def _drawing(histogram: QuantizationHistogram, data: ChartData) -> Drawing:
    spec = histogram.spec
    label = f"{spec.layer}, {spec.tensor}, {spec.bits} bits" + (", per channel" if spec.per_channel else "")
    chart = quantization_bars(
        bin_frame(histogram),
        mark_frame(histogram),
        x_title="Place on the channel's grid (steps from 0)" if math.isnan(histogram.scale) else "Value",
        sensitivity_title=_SENSITIVITY.get(spec.objective),
    )
    words = (
        f"{label}: {fmt.percent(histogram.zero_share, digits=1)} of the values become zero, "
        f"{fmt.percent(histogram.clamped_share, digits=3)} are clamped; seen on "
        f"{fmt.plural(histogram.num_images, 'image')}."
    )
    return drawn(chart, data, label=label, words=words)
