"""Shares measured around a compressed model, against applying each schedule by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.measure.session import Session
from senseapp.prove import refine as search
from senseapp.prove.conditional import ConditionalSensitivity
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.prove import prove
from senseapp.prove.refine import refine
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.repair import Matching, Reference
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import manual_schedule
from tests.cases import first_of
from tests.schedule_cases import change

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_digits")]

CASES = {
    "pruning": (PruningConfig(), (0.25, 0.5), "macs", 0.15),
    "sparsity": (SparsityConfig(), (0.5, 0.9), "params", 0.3),
    "quantization": (QuantizationConfig(), (4.0, 2.0), "bytes", 0.6),
}


@pytest.fixture(scope="module", params=first_of(CASES))
def case(few_digits, request):
    config, levels, kind, target = CASES[request.param]
    spec = SensitivitySpec(compression=config, levels=levels, layers=("layer[34]*",), num_samples=64)
    session = Session.open(RunSpec(sensitivity=spec))
    result = session.result(list(session.measure()))
    schedule = make_schedule(result, budget=ResourceBudget(kind=kind, target=target))
    return ScheduleEvaluator.open(result), schedule


def _kl(evaluator, levels, *, repair=False):
    applied = evaluator.reconstruction.apply(manual_schedule(evaluator.result, levels))
    if repair:
        evaluator.reconstruction.repair(applied)
    return next(c.delta for c in evaluator.judged(applied, evaluator.images.curves).changes if c.metric == "kl")


@pytest.mark.parametrize(
    ("case", "repair"),
    first_of([("quantization", False), ("pruning", True), ("sparsity", False), ("sparsity", True)]),
    indirect=["case"],
)
def test_a_share_is_the_difference_that_applying_by_hand_makes(case, repair):
    evaluator, schedule = case
    conditional = ConditionalSensitivity.open(evaluator, schedule, repair=repair)
    shares = {item.key: item.changes[0].delta for item in conditional.shares()}
    assert shares.keys() == {item.key for item in evaluator.result.shown if item.changes}
    assert len(conditional.levels) > 2
    for layer, level in list(shares)[:: max(1, len(shares) // 4)]:
        others = {name: own for name, own in conditional.levels.items() if name != layer}
        by_hand = _kl(evaluator, {**others, layer: level}, repair=repair) - _kl(evaluator, others, repair=repair)
        assert shares[layer, level] == pytest.approx(by_hand, rel=0.02, abs=2e-4)


def test_a_proof_that_solves_again_is_no_worse_and_leaves_the_model_as_it_was(case):
    evaluator, schedule = case
    before = copy.deepcopy(evaluator.dense.model.state_dict())
    found = prove(evaluator, schedule, repair=True, rounds=2).result
    damage = [_best_kl(evaluator, plan) for plan in (schedule, found.schedule)]
    assert damage[1] <= damage[0] + 1e-9
    assert found.schedule.budget == schedule.budget
    after = evaluator.dense.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def _best_kl(evaluator, schedule):
    found = measured(
        evaluator, evaluator.reconstruction.apply(schedule), "kl", repair=True, images=evaluator.images.curves
    )
    return next(change.delta for change in found.best if change.metric == "kl")


def _levels(schedule):
    return {entry.layer: entry.level for entry in schedule.entries if entry.compression != "none"}


@pytest.mark.wide
@pytest.mark.parametrize("case", ["pruning"], indirect=True)
def test_pruning_that_is_solved_again_truly_costs_as_much(case):
    evaluator, schedule = case
    again = prove(evaluator, schedule, repair=False, rounds=3).result
    once = prove(evaluator, schedule, repair=False, rounds=1).result
    assert again.rounds > 1
    assert again.sizes["macs"][1] <= once.sizes["macs"][1] * 1.001


def test_a_round_that_takes_too_long_is_not_begun(case, monkeypatch):
    evaluator, schedule = case
    monkeypatch.setattr("senseapp.prove.conditional._MOST_SECONDS", 0.0)
    assert ConditionalSensitivity.open(evaluator, schedule, repair=False) is None


def test_statistics_come_back_also_when_the_body_raises():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).eval()
    reference = Reference(model, [torch.randn(8, 1, 5, 5, generator=torch.Generator().manual_seed(0))])
    model[0].weight.data.mul_(0.5)
    before = copy.deepcopy(model.state_dict())

    def fail():
        with Matching(model, reference).fitted():
            assert not torch.equal(model[1].running_mean, before["1.running_mean"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.wide
def test_a_schedule_that_does_more_damage_than_that_for_plain_sums_gives_way_to_it(few_digits):
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(0.5, 0.8, 0.95), num_samples=64)
    session = Session.open(RunSpec(sensitivity=spec))
    result = session.result(list(session.measure()))
    budget = ResourceBudget(kind="params", target=0.6)
    misled = replace(make_schedule(result, budget=budget, method="uniform"), method="optimal")
    sums = make_schedule(replace(result, recorded=None), budget=budget)
    evaluator = ScheduleEvaluator.open(result)
    damage = [_kl(evaluator, _levels(schedule)) for schedule in (misled, sums)]
    assert damage[1] < damage[0]
    found, _, notes = refine(evaluator, misled, rounds=2, repair=False)
    assert _kl(evaluator, _levels(found)) <= damage[1] + 1e-9
    assert any("the latter was taken" in note for note in notes)


@pytest.mark.parametrize(
    ("found", "rounds", "best", "used"),
    [
        ({"asked": ["worse"], "sums": ["better"]}, 3, "better", 3),  # nothing around the first, so around the other
        ({"asked": ["worse"], "sums": ["better"]}, 2, "asked", 2),  # no round is left for it
        ({"asked": ["better"], "better": ["best"]}, 3, "best", 3),
        ({"asked": ["worse"], "sums": ["worse"]}, 3, "asked", 3),
    ],
)
def test_rounds_start_where_less_is_lost_and_then_around_the_other(monkeypatch, found, rounds, best, used):
    lost = {"asked": 0.5, "sums": 0.6, "worse": 0.9, "better": 0.4, "best": 0.3}
    entry = ScheduleEntry(layer="conv", members=("conv",), compression="sparsity", level=0.5)
    budget = ResourceBudget(kind="params", target=0.5)
    plans = {
        name: Schedule(model=name, method="optimal", entries=(entry,), budget=budget, metric="kl") for name in lost
    }
    monkeypatch.setattr(search, "_solved_by_sums", lambda *_: plans["sums"])
    monkeypatch.setattr(search, "_solved_again", lambda _, tried: plans[found[tried.schedule.model].pop(0)])

    def tried(evaluator, schedule, *_):
        return search._Tried(schedule=schedule, damage=change(lost[schedule.model]), repaired=False)

    monkeypatch.setattr(search, "_tried", tried)
    evaluator = SimpleNamespace(result=SimpleNamespace(compression=SparsityConfig()), progress=lambda _: None)
    schedule, rounds_used, notes = refine(evaluator, plans["asked"], rounds=rounds, repair=False)
    assert (schedule.model, rounds_used) == (best, used)
    assert ("no better schedule" in notes[-1]) == (best == "asked")
