"""Frames of curves against numbers worked out by hand; one layer at every level, and how far a level is reached."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.metrics import METRICS
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.store.distiller import read_distiller_csv
from senseapp.views.frames.levels import (
    CURVE_AXES,
    accuracy_reward,
    curve_rows,
    reached_note,
    why_no_reward,
)
from senseapp.views.frames.results import measurement_frame
from tests.distiller_tables import TABLE
from tests.pages.records import FRAGILE, profile, result

RESULT = result()


def row(name: str, metric: str, level: float = 0.5):
    frame = curve_rows(measurement_frame(RESULT, metric), METRICS[metric], CURVE_AXES[name], SparsityConfig.scale)
    return frame[(frame["layer"] == FRAGILE) & (frame["level"] == level)].iloc[0]


def test_the_change_is_the_drop_with_its_interval():
    found = row("drop", "top1")
    assert (found["shown"], found["shown_low"], found["shown_high"]) == pytest.approx((8.0, 7.4, 8.6))
    assert (found["shown_text"], found["place"]) == ("8.0 points", 50)


def test_the_interval_of_the_metric_itself_is_that_of_its_drop():
    accuracy = row("value", "top1")
    assert (accuracy["shown"], accuracy["shown_low"], accuracy["shown_high"]) == pytest.approx((90.0, 89.4, 90.6))
    assert accuracy["shown_text"] == "90.0 %"
    loss = row("value", "loss")
    assert (loss["shown"], loss["shown_low"], loss["shown_high"]) == pytest.approx((0.16, 0.154, 0.166))
    noise = row("value", "sqnr")
    assert noise["shown"] == noise["shown_low"] == noise["shown_high"] == 12.0


def test_the_reward_weighs_errors_against_the_macs_that_are_left():
    found = row("reward", "top1")
    left = RESULT.profile.macs - 1152 * 64 // 2
    assert found["macs_left"] == left
    assert found["shown"] == pytest.approx(-(1 - 0.90) * math.log(left))
    assert found["shown_low"] == pytest.approx(-(1 - 0.894) * math.log(left))
    assert found["shown_low"] < found["shown"] < found["shown_high"] < 0


def test_the_reward_of_one_layer_is_that_of_distillers_notebook():
    """There the layer's MACs are left with the level's share of its inputs and of its outputs gone."""
    rows = curve_rows(
        measurement_frame(RESULT, "top1"), METRICS["top1"], CURVE_AXES["layer_reward"], SparsityConfig.scale
    )
    dense = {layer.name: layer.macs for layer in RESULT.profile.layers}
    for item in rows.to_dict("records"):
        sparse_macs = dense[item["layer"]] * ((1 - item["level"]) * (1 - item["level"]))
        assert item["shown"] == pytest.approx(-1 * (1 - item["value"] / 100) * math.log(sparse_macs))
    assert len(rows) == 3 * len(dense)


def test_coupled_layers_are_rewarded_together_and_bits_take_no_macs_away():
    pair = tuple(layer.name for layer in RESULT.profile.layers[:2])
    grouped = replace(
        RESULT, measurements=tuple(replace(item, members=pair) for item in RESULT.measurements if item.layer == pair[0])
    )
    found = measurement_frame(grouped, "top1").set_index("level")["layer_macs_left"]
    assert found[0.5] == sum(RESULT.profile.layer(name).macs for name in pair) / 4
    bits = result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0, 2.0))))
    assert measurement_frame(bits, "top1")["layer_macs_left"].isna().all()


def test_fewer_macs_and_fewer_errors_both_raise_the_reward():
    assert accuracy_reward(0.7, 1e6) > accuracy_reward(0.7, 1e9)
    assert accuracy_reward(0.8, 1e9) > accuracy_reward(0.7, 1e9)
    assert accuracy_reward(1.0, 1e9) == 0


def test_bits_are_places_as_they_are():
    bits = result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0, 2.0))))
    rows = curve_rows(measurement_frame(bits, "top1"), METRICS["top1"], CURVE_AXES["drop"], QuantizationConfig.scale)
    assert set(rows["place"]) == {8.0, 2.0}


def test_without_what_it_needs_there_is_no_reward_but_a_sentence():
    assert why_no_reward(RESULT) == ""
    assert "come without" in why_no_reward(read_distiller_csv(TABLE))
    bits = result(RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0, 2.0))))
    assert "quantization takes none away" in why_no_reward(bits)
    unlabelled = replace(
        RESULT,
        measurements=tuple(
            replace(item, changes=tuple(change for change in item.changes if change.metric == "kl"))
            for item in RESULT.measurements
        ),
    )
    assert "images with labels" in why_no_reward(unlabelled)


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
