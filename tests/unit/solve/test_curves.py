import math
from dataclasses import replace

import pytest
from scipy.interpolate import PchipInterpolator

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSchedule, InvalidSpec
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.solve.curve_set import curves_of, damage_metric
from senseapp.solve.curves import CurvePoint, LayerCurve, cleaned, weight_bytes
from tests.schedule_cases import change, measurement, run_of, sparse_run


def curve(*points, compression="sparsity", continuous=True, num_params=100):
    return LayerCurve(
        layer="a",
        members=("a",),
        compression=compression,
        num_params=num_params,
        points=tuple(
            CurvePoint(level=level, damage=damage, removed_params=level * num_params, removed_macs=level * 1000)
            for level, damage in points
        ),
        continuous=continuous,
    )


def test_negative_damage_counts_as_none_and_falls_are_lifted():
    points = [CurvePoint(level=level, damage=damage) for level, damage in ((0.2, -0.1), (0.4, 0.3), (0.6, 0.2))]
    assert [point.damage for point in cleaned(points)] == [0.0, 0.3, 0.3]


def test_grid_divides_the_gaps_into_tidy_steps():
    assert curve((0.25, 1), (0.5, 2), (0.75, 3)).grid() == tuple(round(0.05 * i, 9) for i in range(16))


def test_grid_of_bits_is_whole_bits_and_32():
    assert curve((8, 0.1), (4, 0.2), (2, 1.0), compression="quantization").grid() == (32, 8, 7, 6, 5, 4, 3, 2)


def test_fractions_follow_a_monotone_cubic_through_zero():
    layer, levels = curve((0.2, 0.3), (0.5, 0.3), (0.9, 2.0), num_params=7), (0.0, 0.1, 0.5, 0.7)
    cubic = PchipInterpolator([0.0, *layer.measured], [0.0, *(point.damage for point in layer.points)])
    assert [choice.damage for choice in layer.choices(levels)] == pytest.approx(cubic(levels).tolist())


def test_bits_are_interpolated_in_the_logarithm():
    layer = curve((8, 0.001), (4, 0.256), compression="quantization")
    assert [choice.damage for choice in layer.choices([7, 6, 5])] == pytest.approx([0.004, 0.016, 0.064])


def test_savings_are_linear_between_measurements_and_go_on_beyond_the_last():
    layer = curve((0.25, 0.1), (0.5, 0.2))
    assert [layer.saving(level, "params") for level in (0.0, 0.1, 0.25, 0.4, 0.5, 0.9)] == pytest.approx(
        [0, 10, 25, 40, 50, 90]
    )
    assert layer.saving(0.4, "macs") == pytest.approx(400)


def test_weight_bytes_takes_the_smaller_of_dense_and_bitmask():
    assert weight_bytes(80) == 320
    assert weight_bytes(80, bits=4) == 40
    assert weight_bytes(80, zeros=40) == 10 + 160
    assert weight_bytes(80, zeros=1) == 320


def test_two_compressions_of_one_layer_add_their_damage():
    sparse = curve((0.5, 0.2)).choice(0.5)
    both = sparse.combined_with(curve((4, 0.1), compression="quantization").choice(4))
    assert both.damage == pytest.approx(0.3)
    assert both.saving("bytes") == pytest.approx(400 - (100 / 8 + 50 * 4 / 8))
    assert [part.compression for part in both.parts] == ["sparsity", "quantization"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_left_out_with_a_note(value):
    found = curves_of(run_of({"a": 10, "b": 10}, {"a": (0.1, value), "b": (0.1, 0.2)}, (0.5, 0.8)))
    assert [len(item.points) for item in found.curves] == [1, 2]
    assert "not a finite number" in found.notes[0]
    assert "a" in found.notes[0]


def test_layers_without_a_value_are_left_alone_and_named():
    extra = (
        LayerMeasurement(layer="b", level=0.5, status=Status.FAILED, reason="no"),
        LayerMeasurement(layer="c", level=0.5, status=Status.NOT_APPLICABLE, members=("c", "d"), reason="coupled"),
    )
    found = curves_of(run_of({"a": 10, "b": 10, "c": 10, "d": 10}, {"a": (0.1,)}, (0.5,), extra=extra))
    assert found.left_alone == (("b",), ("c", "d"))
    assert "2 layers have no usable measurement" in found.notes[0]


def test_estimates_are_used_where_nothing_was_measured_and_counted_aloud():
    result = sparse_run()
    guess = replace(
        measurement("conv1", 0.25, 9.0, num_params=1000, compression="sparsity"), estimated=True, changes=(change(9.0),)
    )
    only_one = replace(
        result, measurements=tuple(item for item in result.measurements if item.key != guess.key), estimates=(guess,)
    )
    assert curves_of(only_one).curves[0].points[0].damage == 9.0
    assert "1 of 16 damages are estimates" in curves_of(only_one).notes[0]
    assert curves_of(replace(result, estimates=(guess,))) == curves_of(result)


def test_nothing_measured_is_one_sentence():
    with pytest.raises(InvalidSchedule, match="nothing to schedule"):
        curves_of(run_of({"a": 10}, {"a": (math.nan,)}, (0.5,)))


def test_kl_is_preferred_and_other_metrics_can_be_named():
    top1 = run_of({"a": 10}, {"a": (0.1,)}, (0.5,), metric="top1")
    assert damage_metric(top1) == "top1"
    assert damage_metric(replace(sparse_run(), metric="top1")) == "kl"
    with pytest.raises(InvalidSpec, match="choose one of top1"):
        damage_metric(top1, "kl")


def test_patterns_with_fixed_levels_have_no_levels_in_between():
    two_four = run_of({"a": 10}, {"a": (0.1,)}, (0.5,), config=SparsityConfig(granularity="2:4"))
    assert curves_of(two_four).curves[0].grid() == (0.0, 0.5)
    fp8 = QuantizationConfig(number_format="fp8_e4m3")
    assert curves_of(run_of({"a": 10}, {"a": (0.1,)}, (8,), compression="quantization", config=fp8)).curves[
        0
    ].grid() == (32.0, 8.0)


@pytest.mark.parametrize(
    ("config", "levels", "words"),
    [
        (SparsityConfig(granularity="filter"), (0.5,), "filter granularity"),
        (QuantizationConfig(number_format="fp8_e4m3"), (8,), "mean integers"),
        (QuantizationConfig(granularity="tensor"), (4,), "one scale per tensor"),
    ],
)
def test_what_a_level_alone_does_not_say_is_noted(config, levels, words):
    result = run_of({"a": 10}, {"a": (0.1,)}, levels, compression=config.kind, config=config)
    assert words in curves_of(result).notes[0]
