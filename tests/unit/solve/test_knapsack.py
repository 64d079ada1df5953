"""The knapsack against trying every combination, and on problems too large for that."""

import itertools

import numpy as np
import pytest

from senseapp.core.errors import InfeasibleBudget
from senseapp.solve.knapsack import solve
from tests.cases import first_of

COSTS = [np.array([0.0, 3.0, 9.0]), np.array([0.0, 4.0]), np.array([0.0, 1.0])]
SAVINGS = [np.array([0.0, 5.0, 8.0]), np.array([0.0, 6.0]), np.array([0.0, 1.0])]


def test_too_much_to_ask_names_what_is_possible():
    with pytest.raises(InfeasibleBudget) as caught:
        solve(COSTS, SAVINGS, 15.5)
    assert caught.value.nearest == 15.0


def test_no_damage_anywhere_takes_the_gentlest():
    none = [np.zeros(3), np.zeros(2), np.zeros(2)]
    assert solve(none, SAVINGS, 0.0) == [0, 0, 0]
    assert sum(own[i] for own, i in zip(SAVINGS, solve(none, SAVINGS, 6.0), strict=True)) == 6.0


@pytest.mark.parametrize("damage", [0.0, 1e-310])
def test_many_layers_without_damage_save_what_is_asked_and_hardly_more(damage):
    rng = np.random.default_rng(7)  # of random weights no answer changes: costs of 0 could not be divided by their sum
    savings = [np.array([0.0, 0.5, 0.75]) * size for size in rng.uniform(100, 1e6, 489)]
    damages = [np.append(0.0, np.sort(rng.random(2)) * damage) for _ in savings]
    for share in (0.1, 0.3, 0.5):
        asked = share * sum(own.max() for own in savings)
        saved = sum(own[i] for own, i in zip(savings, solve(damages, savings, asked), strict=True))
        assert saved == pytest.approx(asked, rel=1e-4 if not damage else 1e-2)
        assert saved >= asked * (1 - 1e-8)


def brute_force(damages, savings, required):
    best = np.inf
    possible = sum(own.max() for own in savings)
    for combination in itertools.product(*(range(len(own)) for own in damages)):
        saved = sum(own[index] for own, index in zip(savings, combination, strict=True))
        if saved >= required - 1e-9 * possible:
            best = min(best, sum(own[index] for own, index in zip(damages, combination, strict=True)))
    return best


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    layers, levels = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    damages = [np.sort(rng.random(levels) ** 4) * 10.0 ** rng.integers(-6, 3) for _ in range(layers)]
    savings = [np.append(0, rng.integers(0, 10 ** rng.integers(1, 7), levels - 1)).astype(float) for _ in range(layers)]
    required = rng.uniform(0, 1) * sum(own.max() for own in savings)
    chosen = solve(damages, savings, required)
    found = sum(own[index] for own, index in zip(damages, chosen, strict=True))
    assert sum(own[index] for own, index in zip(savings, chosen, strict=True)) >= required - 1e-8 * sum(
        own.max() for own in savings
    )
    assert found == pytest.approx(brute_force(damages, savings, required), rel=1e-6, abs=1e-15)


def _linear_bound(damages, savings, required):
    all_damages, all_savings = np.stack(damages), np.stack(savings)
    return max(
        price * required + (all_damages - price * all_savings).min(1).sum() for price in np.geomspace(1e-12, 1e-3, 2000)
    )


@pytest.mark.parametrize(("layers", "kinds"), [(500, 1), (700, 3), (200, 200)])
def test_a_large_problem_stays_within_its_bound_of_the_linear_relaxation(layers, kinds):
    """No schedule beats the relaxation; of layers that are alike, one step of the price changes all."""
    shares = np.arange(20) / 20
    rng = np.random.default_rng(layers)
    shapes = [(size, rng.uniform(3, 9)) for size in 10 ** rng.uniform(3, 6, kinds)]
    sizes, bends = zip(*(shapes[layer % kinds] for layer in range(layers)), strict=True)
    damages = [1e-3 * np.expm1(bend * shares) for bend in bends]
    savings = [size * shares for size in sizes]
    for required in (0.33 * sum(sizes), 0.71 * sum(sizes)):
        chosen = solve(damages, savings, required)
        ours = sum(own[index] for own, index in zip(damages, chosen, strict=True))
        assert ours <= 1.002 * _linear_bound(damages, savings, required)
