import numpy as np
import pytest

from senseapp.core.errors import InfeasibleBudget
from senseapp.solve.knapsack import solve

COSTS = [np.array([0.0, 3.0, 9.0]), np.array([0.0, 4.0]), np.array([0.0, 1.0])]
SAVINGS = [np.array([0.0, 5.0, 8.0]), np.array([0.0, 6.0]), np.array([0.0, 1.0])]


@pytest.mark.parametrize(("required", "least"), [(0, 0.0), (1, 1.0), (6, 4.0), (11, 7.0), (15, 14.0)])
def test_the_cheapest_that_saves_enough(required, least):
    chosen = solve(COSTS, SAVINGS, required)
    assert sum(own[i] for own, i in zip(COSTS, chosen, strict=True)) == least
    assert sum(own[i] for own, i in zip(SAVINGS, chosen, strict=True)) >= required


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
