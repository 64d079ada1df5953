"""Pruned neighbours share weights: savings, predicted and counted from what is coupled, and a chain of known size."""

import itertools
from dataclasses import replace

import pytest

from senseapp.core.errors import InfeasibleBudget
from senseapp.records.profile import CoupledAxis, CoupledGroup
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import PRUNING_NOTE
from senseapp.solve.trade_off import true_figures, true_shares, truly_sized, with_true_size
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
        removed = round(item.level * (SIZES[item.layer] + SIZES[NAMES[NAMES.index(item.layer) + 1]]))
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

    assert target <= true_fraction(with_true_size(make, true_fraction, target)) <= target + 0.03


UNITS = 100_000  # so fine that whole units are no matter
GROUPS = tuple(
    CoupledGroup(
        layer=name,
        num_units=UNITS,
        axes=(CoupledAxis(layer=name, axis="out", share=1.0), CoupledAxis(layer=reader, axis="in", share=1.0)),
    )
    for name, reader in itertools.pairwise(NAMES)
)


def sized(target, kind="params", groups=GROUPS):
    result = chain_run()

    def make(asked):
        return make_schedule(result, budget=ResourceBudget(kind=kind, target=asked))

    return truly_sized(make, result.profile, groups, ResourceBudget(kind=kind, target=target))


@pytest.mark.parametrize("target", [0.2, 0.5, 0.8])
def test_the_budget_is_truly_met(target):
    schedule = sized(target)
    assert target <= true_fraction(schedule) <= target + 0.03
    assert schedule.achieved["params"] == pytest.approx(true_fraction(schedule), abs=1e-4)
    assert schedule.budget == ResourceBudget(kind="params", target=target)
    assert PRUNING_NOTE not in schedule.notes


def test_only_whole_units_go():
    three = tuple(CoupledGroup(layer=group.layer, num_units=3, axes=group.axes) for group in GROUPS)
    schedule = make_schedule(chain_run(), budget=ResourceBudget(kind="params", target=0.3))
    fine, coarse = (true_figures(schedule, chain_run().profile, groups)["params"] for groups in (GROUPS, three))
    assert coarse < fine


def test_products_of_activations_count_in_the_whole_and_go_with_their_heads():
    run = chain_run()
    layers = run.profile.layer_macs
    profile = replace(run.profile, macs=2 * layers)
    heads = (replace(GROUPS[0], other_macs=layers),)
    ratio = {GROUPS[0].layer: 0.5}
    alone = true_shares(ratio, profile, GROUPS[:1])["macs"]
    assert alone == pytest.approx(true_shares(ratio, run.profile, GROUPS[:1])["macs"] / 2)
    assert true_shares(ratio, profile, heads)["macs"] == pytest.approx(alone + 0.25)


def test_shares_of_one_axis_add_up():
    """A layer that reads two groups joined loses from each its share of the axis."""
    halves = tuple(
        CoupledGroup(layer=name, num_units=UNITS, axes=(CoupledAxis(layer="layer4", axis="in", share=0.5),))
        for name in ("layer0", "layer1")
    )
    result = chain_run()
    schedule = make_schedule(result, method="uniform", budget=ResourceBudget(kind="params", target=0.5))
    level = schedule.level_of("layer0")
    share = result.profile.layer("layer4").num_params / sum(layer.num_params for layer in result.profile.layers)
    assert true_figures(schedule, result.profile, halves)["params"] == pytest.approx(level * share, abs=1e-4)


def test_more_than_can_be_removed_names_the_most():
    with pytest.raises(InfeasibleBudget, match="the strongest schedule that was tried removes"):
        sized(0.99)
