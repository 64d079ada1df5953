"""Frames and charts of quantization histograms."""

from __future__ import annotations

import json
import math

import pytest

from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.spec import HistogramSpec
from senseapp.views.charts.quantization_bars import (
    bin_frame,
    cell_profile_chart,
    mark_frame,
    profile_frame,
    quantization_bars,
)


def a_histogram(*, bits: int = 2, scale: float = 0.5, sub_bins: int = 4) -> QuantizationHistogram:
    """Cell k of a symmetric grid holds k + 1 values, all in its second bin."""
    cells = 2**bits - 1
    counts = [float(cell + 1) if index == 1 else 0.0 for cell in range(cells) for index in range(sub_bins)]
    return QuantizationHistogram(
        spec=HistogramSpec(layer="conv1", bits=bits),
        cells=cells,
        sub_bins=sub_bins,
        zero_cell=cells // 2,
        scale=scale,
        low=-0.6,
        high=0.55,
        counts=tuple(counts),
        gradient_sums=tuple(-count for count in counts),
        gradient_magnitudes=tuple(2 * count for count in counts),
        place_sums=tuple((cell + 1) * (cell - 0.2) for cell in range(cells)),
        zeros=float(cells // 2 + 1),
        clamped=1.0,
        num_images=8,
    )


def test_bins_are_in_values_with_their_grid_points() -> None:
    frame = bin_frame(a_histogram())
    assert list(frame["cell"]) == [-1] * 4 + [0] * 4 + [1] * 4
    assert frame["start"].iloc[0] == pytest.approx(-0.75)
    assert frame["end"].iloc[-1] == pytest.approx(0.75)
    assert frame["count"].sum() == 6
    assert frame["sensitivity"].sum() == 12
    assert frame["gradient_sum"].sum() == -6


def test_a_scale_per_channel_leaves_steps_from_zero() -> None:
    histogram = a_histogram(scale=math.nan)
    assert bin_frame(histogram)["start"].iloc[0] == -1.5
    assert "end of the true range" not in set(mark_frame(histogram)["mark"])


@pytest.mark.parametrize(("bits", "rows"), [(2, 48), (5, 496), (6, 504), (8, 510)])
def test_charts_have_about_500_bins_and_files_have_all(bits: int, rows: int) -> None:
    histogram = a_histogram(bits=bits, sub_bins=16)
    drawn, whole = bin_frame(histogram), bin_frame(histogram, every_bin=True)
    assert len(drawn) == rows
    assert len(whole) == (2**bits - 1) * 16
    assert drawn["count"].sum() == whole["count"].sum() == histogram.total
    assert list(drawn["cell"]) == sorted(drawn["cell"])
    assert drawn["cell"].iloc[[0, -1]].tolist() == [1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1]


def test_shares_centroids_and_profile() -> None:
    histogram = a_histogram()
    assert histogram.zero_share == pytest.approx(2 / 6)
    assert histogram.clamped_share == pytest.approx(1 / 6)
    assert histogram.centroids == pytest.approx((-0.2, 0.8, 1.8))
    assert list(profile_frame(histogram)["share"]) == [0, 1, 0, 0]
    assert list(mark_frame(histogram)["mark"]).count("mean of a cell") == 3


def test_charts_carry_the_sensitivity_only_where_there_is_one() -> None:
    histogram = a_histogram()
    for title, layers in (("|gradient|", 2), (None, 1)):
        chart = quantization_bars(
            bin_frame(histogram), mark_frame(histogram), x_title="Value", sensitivity_title=title
        ).to_dict()
        assert len(chart["layer"]) == layers
        assert chart["resolve"]["scale"]["y"] == "independent"
    assert "share" in json.dumps(cell_profile_chart(profile_frame(histogram)).to_dict())
