"""Pruned neighbours share weights: predicted savings against the true size of a chain of layers."""

import itertools
from dataclasses import replace

import pytest

from senseapp.core.errors import InfeasibleBudget
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import trade_off, with_true_size
from tests.schedule_cases import run_of

WIDTHS = (3, 16, 32, 32, 64, 10)
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
SIZES = {f"layer{index}": a * b for index, (a, b) in enumerate(itertools.pairwise(WIDTHS))}
NAMES = list(SIZES)


def chain_run():
    """A chain of linear layers; pruning one's outputs removes the next one's inputs; the last keeps its own."""
    damages = {name: [0.1 * (1 + place) * level**3 for level in LEVELS] for place, name in enumerate(NAMES[:-1])}
    result = run_of(SIZES, damages, LEVELS, compression="pruning")
    measurements = []
    for item in result.measurements:
        following = NAMES[NAMES.index(item.layer) + 1]
        removed = round(item.level * (SIZES[item.layer] + SIZES[following]))
        measurements.append(replace(item, removed_params=removed, removed_macs=10 * removed))
    return replace(result, measurements=tuple(measurements))


def true_fraction(schedule):
    kept = [1.0, *(1 - (schedule.level_of(name) or 0.0) for name in NAMES)]
    left = sum(SIZES[name] * kept[i] * kept[i + 1] for i, name in enumerate(NAMES))
    return 1 - left / sum(SIZES.values())


@pytest.mark.parametrize("target", [0.2, 0.5, 0.8])
def test_uniform_pruning_is_predicted_closely(target):
    schedule = make_schedule(chain_run(), method="uniform", budget=ResourceBudget(kind="params", target=target))
    assert schedule.achieved["params"] == pytest.approx(target, abs=1e-6)
    assert true_fraction(schedule) == pytest.approx(target, abs=0.02)
    assert "neighbouring pruned layers" in schedule.notes[-1]


@pytest.mark.parametrize("target", [0.3, 0.5, 0.7])
def test_the_true_size_meets_the_target_when_it_is_asked_for(target):
    def make(asked):
        return make_schedule(chain_run(), budget=ResourceBudget(kind="params", target=asked))

    schedule = with_true_size(make, true_fraction, target)
    assert target <= true_fraction(schedule) <= target + 0.03


def test_a_true_size_out_of_reach_names_the_most_that_was_removed():
    def make(asked):
        return make_schedule(chain_run(), budget=ResourceBudget(kind="params", target=asked))

    with pytest.raises(InfeasibleBudget, match="strongest schedule that was tried removes") as caught:
        with_true_size(make, true_fraction, 0.999)
    assert caught.value.nearest == pytest.approx(true_fraction(make(_most(make))), abs=1e-3)


def _most(make):
    with pytest.raises(InfeasibleBudget) as caught:
        make(0.999)
    return caught.value.nearest - 1e-9


def test_the_trade_off_uses_the_same_figures():
    for point in trade_off(chain_run(), "params", 5):
        schedule = make_schedule(chain_run(), budget=ResourceBudget(kind="params", target=max(0.0, point.target)))
        assert schedule.predicted_damage == pytest.approx(point.damage)
