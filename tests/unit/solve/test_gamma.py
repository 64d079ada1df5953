from dataclasses import replace

import pytest

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.solve.gamma import gamma_levels, layer_targets
from tests.schedule_cases import SIZES, measurement, quantized_run, run_of, sparse_run


def mean(levels, sizes):
    return sum(levels[name] * size for name, size in sizes.items()) / sum(sizes.values())


def test_the_weighted_mean_is_the_target_and_fragile_layers_get_less():
    targets = layer_targets(sparse_run(), target=0.5, low=0.1, high=0.8, gamma=1.5)
    assert mean(targets, SIZES) == pytest.approx(0.5, abs=1e-9)
    assert targets["conv1"] < targets["conv2"] < targets["conv3"] < targets["fc"]


def test_gamma_spares_fragile_layers_more():
    gentle = layer_targets(sparse_run(), target=0.5, gamma=0.5)
    steep = layer_targets(sparse_run(), target=0.5, gamma=3)
    assert max(steep.values()) - min(steep.values()) > max(gentle.values()) - min(gentle.values())


def test_equal_damage_gives_equal_levels():
    assert gamma_levels([0.2, 0.2, 0.2], [1, 5, 9], target=0.3, low=0, high=0.9).tolist() == pytest.approx([0.3] * 3)


def test_improvements_count_as_no_damage():
    with_negative = gamma_levels([-5.0, 0.0, 1.0], [1, 1, 1], target=0.4, low=0, high=0.9)
    assert with_negative[0] == with_negative[1]


@pytest.mark.parametrize("target", [0.1, 0.8])
def test_a_target_at_a_bound_puts_every_layer_there(target):
    levels = gamma_levels([0.0, 0.5, 1.0], [1, 2, 3], target=target, low=0.1, high=0.8, gamma=2)
    assert levels.tolist() == pytest.approx([target] * 3)


@pytest.mark.parametrize(("target", "nearest"), [(0.9, 0.8), (0.05, 0.1)])
def test_a_target_outside_the_bounds_names_the_nearest(target, nearest):
    with pytest.raises(InfeasibleBudget, match=f"nearest that can is {100 * nearest:g} %") as caught:
        layer_targets(sparse_run(), target=target, low=0.1, high=0.8)
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (0.6, 0.5), (0.0, 1.0), (float("nan"), 0.5)])
def test_limits_out_of_range_are_refused(low, high):
    with pytest.raises(InvalidSpec, match="minimum <= maximum"):
        layer_targets(sparse_run(), target=0.5, low=low, high=high)


@pytest.mark.parametrize("gamma", [-1.0, float("nan"), float("inf")])
def test_gamma_out_of_range_is_refused(gamma):
    with pytest.raises(InvalidSpec, match="gamma"):
        layer_targets(sparse_run(), gamma=gamma)


def test_the_level_nearest_to_the_target_tells_layers_apart():
    damages = {"a": (0.0, 1.0), "b": (0.5, 1.0)}
    result = run_of({"a": 10, "b": 10}, damages, (0.2, 0.8))
    assert layer_targets(result, target=0.8)["a"] == pytest.approx(0.8)
    assert layer_targets(result, target=0.3)["a"] > layer_targets(result, target=0.3)["b"]


def test_every_member_of_a_group_gets_its_level():
    sizes = {"a": 10, "b": 30, "c": 10}
    result = run_of(sizes, {"a": (0.1,), "c": (0.9,)}, (0.5,), compression="pruning")
    grouped = replace(measurement("a", 0.5, 0.1, num_params=40, compression="pruning"), members=("a", "b"))
    result = replace(result, measurements=(grouped, result.measurements[1]))
    targets = layer_targets(result, target=0.5, gamma=1)
    assert targets["a"] == targets["b"] > targets["c"]
    assert mean(targets, sizes) == pytest.approx(0.5)


def test_a_quantization_run_has_targets_too():
    targets = layer_targets(quantized_run(), target=0.5)
    assert mean(targets, SIZES) == pytest.approx(0.5)
    assert targets["conv1"] < targets["fc"]
