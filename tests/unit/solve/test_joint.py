"""What layers are predicted to lose together, against outputs that truly add up, and against every combination."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr, softmax

from senseapp.core.codec import dumps, loads
from senseapp.measure.accumulation import BaselineOutputs, images_to_record
from senseapp.metrics import METRICS
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.solve.curve_set import curves_of
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import build_problem, manual_schedule
from tests.cases import first_of
from tests.schedule_cases import run_of

KL = METRICS["kl"]
LEVELS = (0.25, 0.5, 0.75)
NUM_IMAGES, NUM_CLASSES = 64, 5


def scores(seed, *, images=NUM_IMAGES, classes=NUM_CLASSES, scale=1.0):
    return scale * torch.randn(images, classes, generator=torch.Generator().manual_seed(seed))


def divergence(before, after):
    """The mean KL divergence, by scipy."""
    p, q = (softmax(each.double().numpy(), axis=1) for each in (before, after))
    return float(rel_entr(p, q).sum(1).mean())


class Network:
    """Layers that each add something of their own to the scores, more of it at stronger levels."""

    def __init__(self, *pushes, recorded_images=NUM_IMAGES):
        self.before = scores(0)
        self.pushes = {f"conv{number}": push for number, push in enumerate(pushes)}
        self.baseline = BaselineOutputs(self.before, None, ("kl",), recorded_images=recorded_images)

    def after(self, levels):
        return self.before + sum(level * self.pushes[layer] for layer, level in levels.items())

    def damage(self, levels):
        return divergence(self.before, self.after(levels))

    def result(self) -> RunResult:
        sizes = dict.fromkeys(self.pushes, 100)
        damages = {layer: [self.damage({layer: level}) for level in LEVELS] for layer in sizes}
        made = run_of(sizes, damages, LEVELS)
        measurements = tuple(replace(item, outputs=self.outputs(*item.key)) for item in made.measurements)
        return replace(made, measurements=measurements, recorded=self.baseline.recorded(), num_samples=NUM_IMAGES)

    def outputs(self, layer, level):
        return self.baseline.recorded_change(self.after({layer: level}), 0, NUM_IMAGES)


def opposed():
    """Two layers that undo each other, one that makes the first worse, and one apart."""
    push = scores(1)
    return Network(push, -push, 0.9 * push, scores(2, scale=0.8))


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(0.001, 3))
def test_the_divergence_of_changed_log_probabilities_is_that_of_the_scores(seed, classes, scale):
    before, change = (scores(seed + each, classes=classes, scale=scale).double() for each in range(2))
    reference = before.log_softmax(1).numpy()
    found = KL.together(reference, np.stack([change.numpy(), np.zeros_like(reference)]), 6).mean(-1)
    assert found == pytest.approx([divergence(before, before + change), 0.0], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 11, 1000])
def test_what_is_recorded_is_of_ten_classes_at_most_and_never_tells_more_than_the_scores(classes):
    before, after = scores(3, classes=classes), scores(4, classes=classes)
    kept, changed = (KL.recorded(before, each).double() for each in (before, after))
    assert kept.shape == (NUM_IMAGES, min(classes, 10)) == (NUM_IMAGES, KL.recorded_size(classes))
    for each in (kept, changed):
        assert each.exp().sum(1).numpy() == pytest.approx(np.ones(NUM_IMAGES), abs=1e-5)
    assert 0 < float((kept.exp() * (kept - changed)).sum(1).mean()) <= divergence(before, after) + 1e-6


def test_recorded_parts_of_the_images_are_those_of_all_at_once():
    before, after = scores(5), scores(6)
    whole = BaselineOutputs(before, None, ("kl",), recorded_images=48)
    parts = [whole.recorded_change(after[start:stop], start, stop) for start, stop in ((0, 20), (20, 40), (40, 64))]
    assert b"".join(parts) == whole.recorded_change(after, 0, NUM_IMAGES)
    assert len(b"".join(parts)) == 2 * 48 * NUM_CLASSES
    assert whole.recorded_change(after[:4], 60, 64) == b""


def test_nothing_is_recorded_of_outputs_without_a_divergence():
    assert BaselineOutputs(scores(7), None, ("agreement",), recorded_images=48).recorded() is None
    assert images_to_record(("agreement",), num_images=64, num_outputs=10, measurements=4) == 0


def test_the_more_measurements_the_fewer_images_are_recorded():
    count = [
        images_to_record(("kl",), num_images=900, num_outputs=1000, measurements=each) for each in (10, 1000, 10**6)
    ]
    assert count == [256, 100, 0]


def test_one_layer_alone_is_predicted_as_it_was_measured():
    network = opposed()
    for level in LEVELS:
        assert manual_schedule(network.result(), {"conv0": level}).predicted_damage == pytest.approx(
            network.damage({"conv0": level}), rel=1e-9
        )


SOME = list(itertools.product((0.0, *LEVELS), repeat=4))[1::7]


@pytest.mark.parametrize("levels", first_of(map(pytest.param, SOME), 8))
def test_changes_that_add_up_are_predicted_as_they_are(levels):
    network = opposed()
    chosen = {layer: level for layer, level in zip(network.pushes, levels, strict=True) if level}
    found = manual_schedule(network.result(), chosen)
    parts = sum(entry.predicted_damage for entry in found.entries)
    assert found.predicted_damage == pytest.approx(network.damage(chosen), rel=0.1, abs=0.05 * parts)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", [0.3, 0.5, 0.6])
def test_schedules_are_no_worse_than_those_for_sums_and_near_the_best_there_is(seed, target):
    common = scores(seed + 10)
    weights = torch.rand(4, generator=torch.Generator().manual_seed(seed))
    network = Network(
        *(weight * common + scores(100 * seed + index, scale=0.7) for index, weight in enumerate(weights))
    )
    result = network.result()
    budget = ResourceBudget(kind="params", target=target)
    found, summed = (make_schedule(each, budget=budget) for each in (result, replace(result, recorded=None)))
    damage = [damage_together(result, schedule) for schedule in (found, summed)]
    assert found.predicted_damage == pytest.approx(damage[0], rel=1e-9)
    assert damage[0] <= damage[1] + 1e-12
    assert found.achieved["params"] >= target - 1e-9
    assert damage[0] <= 1.3 * least_of_all(result, budget)


def damage_together(result, schedule):
    return manual_schedule(result, {entry.layer: entry.level for entry in schedule.entries}).predicted_damage


def least_of_all(result, budget):
    """The least damage of every combination of measured levels that meets the budget."""
    problem = build_problem(result, budget, Limits())
    curves = problem.curve_set.curves
    options = [[curve.choice(level) for level in (0.0, *LEVELS)] for curve in curves]
    enough = (
        {curve.layer: choice for curve, choice in zip(curves, chosen, strict=True)}
        for chosen in itertools.product(*options)
        if sum(choice.saving("params") for choice in chosen) >= problem.required - 1e-9
    )
    return min(problem.curve_set.damage(chosen) for chosen in enough)


def test_a_network_next_to_broken_is_left_to_plain_sums():
    push = scores(1, scale=6.0)
    network = Network(push, push, scores(2, scale=7.0))
    budget = ResourceBudget(kind="params", target=0.6)
    found, summed = (
        make_schedule(each, budget=budget) for each in (network.result(), replace(network.result(), recorded=None))
    )
    assert found.predicted_damage > 1
    assert levels_of(found) == levels_of(summed)


def levels_of(schedule):
    return {entry.layer: entry.level for entry in schedule.entries if entry.level}


@pytest.mark.parametrize(
    "damaged",
    [
        lambda item: replace(item, outputs=item.outputs[:-3]),
        lambda item: replace(item, outputs=b"\x00\x7e" * (len(item.outputs) // 2)),  # not a number
        lambda item: replace(item, outputs=b"\x00\x7c" * (len(item.outputs) // 2)),  # infinite
        lambda item: replace(item, outputs=b"\xff\x7b" * (len(item.outputs) // 2)),  # the largest there is
        lambda item: replace(item, outputs=500 * item.outputs),
        lambda item: replace(item, outputs=b"\x01"),
        lambda item: replace(item, outputs=b""),
    ],
)
def test_recorded_outputs_that_are_torn_or_no_numbers_break_nothing(damaged):
    result = opposed().result()
    first, *others = result.measurements
    for measurements in ((damaged(first), *others), tuple(map(damaged, result.measurements))):
        made = make_schedule(
            replace(result, measurements=measurements), budget=ResourceBudget(kind="params", target=0.5)
        )
        assert np.isfinite(made.predicted_damage)
        assert made.predicted_damage >= 0


@pytest.mark.parametrize("size", [-1, 0, 1, 7, 10**9])
def test_a_wrong_size_of_what_was_recorded_breaks_nothing(size):
    result = opposed().result()
    result = replace(result, recorded=replace(result.recorded, size=size))
    made = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    assert np.isfinite(made.predicted_damage)


def test_without_recorded_outputs_damages_are_summed():
    result = replace(opposed().result(), recorded=None)
    made = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    assert made.predicted_damage == pytest.approx(sum(entry.predicted_damage for entry in made.entries))
    assert curves_of(result).joint is None


def test_too_few_images_predict_nothing_together():
    assert curves_of(Network(scores(1), scores(2), recorded_images=15).result()).joint is None


def test_a_result_keeps_what_was_recorded():
    result = opposed().result()
    assert loads(dumps(result), RunResult) == result
