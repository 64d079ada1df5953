"""The classic rule against fasterai 0.3.2's ``to_layer_targets``, restated here from its published behaviour.

The restatement finds the common offset by walking the breakpoints of the clipped sum instead of by bisection, so the
two share no code path. fasterai rounds its answer to 0.01 %, and never ends on a target outside [min, max].
"""

from dataclasses import replace

import numpy as np
import pytest

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.solve.gamma import gamma_levels, layer_targets
from tests.schedule_cases import measurement, run_of, sparse_run

DELTAS = (0.31, 0.02, 0.11, -0.01, 0.07, 0.0)
PUBLISHED_SIZES = (1728, 36864, 73728, 147456, 8192, 5120)
FASTERAI_PERCENT = (10.0, 54.33, 27.27, 61.0, 38.68, 61.0)


def restated(deltas, weights, target, low, high, gamma):
    positive = np.clip(deltas, 0, None)
    if np.allclose(positive, positive[0]):
        start = np.full(len(positive), target)
    else:
        fragile = (positive - positive.min()) / (positive.max() - positive.min())
        start = low + (high - low) * np.power(1 - fragile, gamma)

    def average(offset):
        return np.average(np.clip(start + offset, low, high), weights=weights)

    breakpoints = np.sort(np.concatenate([low - start, high - start]))
    averages = np.array([average(offset) for offset in breakpoints])
    right = int(np.clip(np.searchsorted(averages, target), 1, len(breakpoints) - 1))
    left = right - 1
    rise = averages[right] - averages[left]
    share = (target - averages[left]) / rise if rise > 0 else 0.0
    offset = breakpoints[left] + share * (breakpoints[right] - breakpoints[left])
    return np.clip(start + offset, low, high)


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_the_restated_rule(seed):
    rng = np.random.default_rng(seed)
    num_layers = int(rng.integers(2, 60))
    deltas = rng.normal(0.1, 0.2, num_layers)
    weights = np.floor(10 ** rng.uniform(1, 6, num_layers))
    low, high = rng.uniform(0, 0.3), rng.uniform(0.6, 0.95)
    target, gamma = rng.uniform(low, high), rng.uniform(0.2, 4)
    ours = gamma_levels(deltas, weights, target=target, low=low, high=high, gamma=gamma)
    np.testing.assert_allclose(ours, restated(deltas, weights, target, low, high, gamma), atol=1e-9)


def test_agrees_with_figures_that_fasterai_printed():
    """Deltas, sizes and settings as given to fasterai 0.3.2; its answer in percent, rounded by it to two decimals."""
    ours = gamma_levels(DELTAS, PUBLISHED_SIZES, target=0.5, low=0.1, high=0.8, gamma=1.5)
    np.testing.assert_allclose(100 * ours, FASTERAI_PERCENT, atol=0.006)


def mean(levels, sizes):
    return sum(levels[name] * size for name, size in sizes.items()) / sum(sizes.values())


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
    result = run_of({"a": 10, "b": 10}, {"a": (0.0, 1.0), "b": (0.5, 1.0)}, (0.2, 0.8))
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
