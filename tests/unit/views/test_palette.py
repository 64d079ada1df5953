"""Colours of losses: what they stand for, and that their order needs no hue."""

import itertools

import numpy as np
import pandas as pd
import pytest

from senseapp.metrics import METRICS
from senseapp.views.charts.axes import picture_spec
from senseapp.views.charts.levels import sensitivity_heatmap
from senseapp.views.frames.results import measurement_frame
from senseapp.views.palette import CANNOT_TELL, FRAGILITY, UNCLEAR, fragility_legend, row_bands
from tests.pages.records import NAMES, result

TOP1 = METRICS["top1"]


def lightness(colour: str) -> float:
    """CIE L* of an sRGB colour, from 0 (black) to 100 (white)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16


def seen_by_deuteranopes(colour: str) -> np.ndarray:
    """Linear RGB as people without green cones see it (Viénot, Brettel and Mollon 1999)."""
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]) ** 2.2
    return np.array([[0.293, 0.707, 0.0], [0.293, 0.707, 0.0], [-0.022, 0.022, 1.0]]) @ parts


def test_each_step_towards_fragile_is_clearly_darker() -> None:
    found = [lightness(colour) for colour in FRAGILITY]
    assert all(first - second >= 8 for first, second in itertools.pairwise(found))


def test_colours_differ_for_those_who_do_not_see_green() -> None:
    for first, second in itertools.combinations((*FRAGILITY, UNCLEAR), 2):
        assert np.abs(seen_by_deuteranopes(first) - seen_by_deuteranopes(second)).max() > 0.08


@pytest.mark.parametrize(
    ("low", "drop", "high", "band"),
    [
        (-0.6, 0.0, 0.6, 0),  # no loss, and at most 0.6 points of it
        (0.2, 0.6, 1.0, 0),
        (-16.1, 0.0, 16.1, CANNOT_TELL),  # what 20 images say of a layer that changes nothing
        (-11.0, 5.0, 24.0, CANNOT_TELL),
        (0.1, 0.8, 9.0, CANNOT_TELL),  # surely a loss, but perhaps a great one
        (0.5, 2.0, 4.0, 1),
        (1.0, 3.0, 5.0, 1),
        (1.0, 3.1, 5.0, 2),
        (4.0, 12.0, 20.0, 3),
        (20.0, 40.0, 60.0, 4),
        (0.9, 0.9, 0.9, 0),  # an estimate
        (100 * (0.98 - 0.97),) * 3 + (0,),  # exactly one point, but for the rounding of a difference
        (np.inf, np.inf, np.inf, 4),
        (-3.0, -2.0, -1.0, 0),
    ],
)
def test_blue_is_only_what_the_interval_leaves_tolerable(low: float, drop: float, high: float, band: int) -> None:
    rows = pd.DataFrame({"low": [low], "drop": [drop], "high": [high]})
    assert row_bands(rows, TOP1).tolist() == [band]


def test_a_metric_in_nats_has_the_same_bands_in_its_own_unit() -> None:
    drops = np.array([0.02, 0.03, 0.1, 0.5, 0.7])
    rows = pd.DataFrame({"low": drops, "drop": drops, "high": drops}, index=[7, 5, 3, 1, 0])
    found = row_bands(rows, METRICS["kl"])
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert list(found.index) == [7, 5, 3, 1, 0]


def test_the_legend_names_every_colour_in_the_unit_of_the_metric() -> None:
    found = fragility_legend(TOP1)
    assert [entry.text for entry in found] == [
        "Loss of right answers up to 1 point",
        "to 3",
        "to 10",
        "to 30",
        "more",
        "too few images to say",
    ]
    assert [entry.color for entry in found] == [*FRAGILITY, UNCLEAR]
    assert [entry.text for entry in fragility_legend(METRICS["kl"])][:3] == [
        "Harm up to 0.02, hardly shows",
        "to 0.06",
        "to 0.2",
    ]
    assert fragility_legend(TOP1, no_value=True)[-1].text == "no value"


def test_a_saved_picture_has_the_legend_that_stands_beside_the_chart() -> None:
    chart = sensitivity_heatmap(
        measurement_frame(result(), "top1"), TOP1, order=list(NAMES), level_texts=["25 %", "50 %", "75 %"]
    )
    colour = chart.to_dict()["layer"][0]["encoding"]["color"]
    assert colour["legend"] is None
    saved = picture_spec(chart, title="x", legend=fragility_legend(TOP1))["layer"][0]["encoding"]["color"]
    assert "up to 1 point" in saved["legend"]["labelExpr"]
    assert saved["scale"] == colour["scale"]
