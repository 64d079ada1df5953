"""The classic rule against fasterai 0.3.2's ``to_layer_targets``, restated here from its published behaviour.

The restatement finds the common offset by walking the breakpoints of the clipped sum instead of by bisection, so the
two share no code path. fasterai rounds its answer to 0.01 %, and never ends on a target outside [min, max].
"""

import numpy as np
import pytest

from senseapp.solve.gamma import gamma_levels

DELTAS = (0.31, 0.02, 0.11, -0.01, 0.07, 0.0)
SIZES = (1728, 36864, 73728, 147456, 8192, 5120)
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


@pytest.mark.parametrize("seed", range(25))
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
    ours = gamma_levels(DELTAS, SIZES, target=0.5, low=0.1, high=0.8, gamma=1.5)
    np.testing.assert_allclose(100 * ours, FASTERAI_PERCENT, atol=0.006)
