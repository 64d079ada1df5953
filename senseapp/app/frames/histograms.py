"""Data frames of a quantization histogram; its charts and its downloads are drawn from these."""

from __future__ import annotations

import math

import pandas as pd

from senseapp.records.histogram import QuantizationHistogram

_FINEST_BITS = 5
_MARKED_CELLS = 31  # beyond it, marks at every mean would hide the bars


def bin_frame(histogram: QuantizationHistogram, *, every_bin: bool = False) -> pd.DataFrame:
    """Return one row per bin: its cell, ends, number of values, gradient sum and sensitivity.

    Ends are values where one scale holds for all, else steps from the value 0. For a chart, bins of more than 5 bits
    are added up so that about 500 are left; ``every_bin`` keeps them.
    """
    together = 1 if every_bin else min(histogram.sub_bins, 2 ** max(0, histogram.spec.bits - _FINEST_BITS))
    frame = pd.DataFrame(
        {
            "count": histogram.counts,
            "gradient_sum": histogram.gradient_sums,
            "sensitivity": histogram.gradient_magnitudes,
        }
    )
    frame = frame.groupby(frame.index // together).sum()
    width = together / histogram.sub_bins
    starts = [-0.5 + index * width for index in range(len(frame))]
    frame.insert(0, "cell", [int(start + 0.5) - histogram.zero_cell for start in starts])
    frame.insert(1, "start", [_shown(histogram, start) for start in starts])
    frame.insert(2, "end", [_shown(histogram, start + width) for start in starts])
    return frame


def mark_frame(histogram: QuantizationHistogram) -> pd.DataFrame:
    """Return the means of the cells (where they are few) and the ends of the true range (where there is one scale)."""
    means = [place for place in histogram.centroids if not math.isnan(place)]
    rows = [{"place": _shown(histogram, place), "mark": "mean of a cell"} for place in means]
    rows = rows if histogram.cells <= _MARKED_CELLS else []
    if not math.isnan(histogram.scale):
        rows += [{"place": end, "mark": "end of the true range"} for end in (histogram.low, histogram.high)]
    return pd.DataFrame(rows, columns=["place", "mark"])


def profile_frame(histogram: QuantizationHistogram) -> pd.DataFrame:
    """Return the mean distribution inside a cell: one row per bin, with its ends in steps from the grid point."""
    width = 1 / histogram.sub_bins
    starts = [-0.5 + index * width for index in range(histogram.sub_bins)]
    return pd.DataFrame({"start": starts, "end": [start + width for start in starts], "share": histogram.profile})


def _shown(histogram: QuantizationHistogram, place: float) -> float:
    value = histogram.value_at(place)
    return place - histogram.zero_cell if math.isnan(value) else value
