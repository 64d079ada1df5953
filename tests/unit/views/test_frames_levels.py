"""Frames of curves against numbers worked out by hand; one layer at every level, and how far a level is reached."""

from __future__ import annotations

import math

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.metrics import METRICS
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.store.distiller import read_distiller_csv
from senseapp.views.frames.levels import (
    curve_rows,
    layer_rewards,
    reached_note,
)
from senseapp.views.frames.results import measurement_frame
from tests.distiller_tables import TABLE
from tests.pages.records import FRAGILE, profile, result

RESULT = result()


def row(metric: str, level: float = 0.5):
    frame = curve_rows(measurement_frame(RESULT, metric), SparsityConfig.scale)
    return frame[(frame["layer"] == FRAGILE) & (frame["level"] == level)].iloc[0]


def test_the_change_is_the_drop_with_its_interval():
    found = row("top1")
    assert (found["drop"], found["low"], found["high"]) == pytest.approx((8.0, 7.4, 8.6))
    assert (found["change_text"], found["place"]) == ("8.0 points", 50)


def test_bits_are_places_as_they_are():
    bits = result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0, 2.0))))
    rows = curve_rows(measurement_frame(bits, "top1"), QuantizationConfig.scale)
    assert set(rows["place"]) == {8.0, 2.0}


PRUNED = result(RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.3, 0.5))))


def test_whole_filters_and_channels_say_how_far_a_level_is_reached():
    assert reached_note(result()) == ""
    assert "1 / (their number)" in reached_note(PRUNED)
    filters = RunSpec(sensitivity=SensitivitySpec(compression=SparsityConfig(granularity="filter"), levels=(0.5,)))
    assert "Whole filters are set to zero" in reached_note(result(filters))
    assert "is not in the file" in reached_note(read_distiller_csv(TABLE, granularity="filter"))
    reached = PruningConfig.scale.reached_text(0.4375), QuantizationConfig.scale.reached_text(4.0)
    assert reached == ("43.8 %", "4 bits")


@pytest.mark.parametrize(("granularity", "reached"), [("weight", (0.15, 0.5)), ("filter", (2 / 16, 0.5))])
def test_a_filter_wise_table_of_a_known_model_says_what_was_truly_reached(granularity, reached):
    known = profile(("conv1", "layer1.0.conv1", "fc"))  # the convolutions have 16 filters
    imported = read_distiller_csv(TABLE, granularity=granularity, profile=known)
    found = [item for item in imported.measurements if item.layer == "conv1"]
    assert [item.achieved_level for item in found] == pytest.approx(reached)
    assert found[0].removed_params == round(reached[0] * 1152)


def test_the_reward_of_a_layer_is_that_of_distillers_notebook():
    rows = measurement_frame(RESULT, "top1")
    dense = {layer.name: layer.macs for layer in RESULT.profile.layers}
    rewards = layer_rewards(rows, RESULT, METRICS["top1"])
    assert rewards is not None
    for item, reward in zip(rows.to_dict("records"), rewards, strict=True):
        sparse_macs = dense[item["layer"]] * ((1 - item["level"]) * (1 - item["level"]))
        assert reward == pytest.approx(-1 * (1 - item["value"] / 100) * math.log(sparse_macs))
    assert layer_rewards(measurement_frame(RESULT, "kl"), RESULT, METRICS["kl"]) is None
