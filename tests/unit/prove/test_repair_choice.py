"""Repaired or not: what is measured decides, and what is delivered is what was found better."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from senseapp.compressions import SparsityConfig
from senseapp.measure.session import Session
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.repair_choice import measured, measured_quickly
from senseapp.reconstruct.repair_sites import NormSite
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.problem import manual_schedule


@pytest.fixture(scope="module")
def opened():
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(0.8,), layers=("layer[23]*",), num_samples=64)
    session = Session.open(RunSpec(sensitivity=spec))
    return ScheduleEvaluator.open(session.result(list(session.measure())))


@pytest.fixture
def evaluator(opened):
    """Forty images for curves and sixty for proofs."""
    images = opened.images
    parts = ProofImages(curves=images.curves.subset(range(40)), proof=images.proof.subset(range(60)), note="")
    return replace(opened, images=parts)


def applied_to(evaluator):
    levels = {item.layer: item.level for item in evaluator.result.measurements}
    return evaluator.apply(manual_schedule(evaluator.result, levels))


def kl(changes):
    return next(change.delta for change in changes if change.metric == "kl")


def state_of(model):
    return copy.deepcopy(model.state_dict())


def same(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_repair_that_helps_is_delivered_with_both_figures(evaluator):
    applied = applied_to(evaluator)
    found = measured(evaluator, applied, "kl", repair=True)
    assert found.delivered == "repaired"
    assert kl(found.best) == kl(found.repaired) < kl(found.changes)
    assert kl(evaluator.judged(applied).changes) == pytest.approx(kl(found.repaired), abs=1e-6)
    assert "40 calibration images, each half with a fit to the other half" in found.reason
    assert "on the same 40 unlabelled images" in found.notes[0]


def test_a_search_measures_the_same_and_repairs_nothing_tolerable(evaluator):
    applied = applied_to(evaluator)
    before = state_of(applied.model)
    changes, repaired = measured_quickly(evaluator, applied, "kl", tolerable=0.0)
    plain, untouched = measured_quickly(evaluator, applied, "kl", tolerable=1e9)
    assert (repaired, untouched, same(applied.model, before)) == (True, False, True)
    assert kl(plain) == pytest.approx(kl(evaluator.judged(applied, evaluator.images.curves).changes), abs=1e-6)
    assert kl(changes) < kl(plain)


def harmful(site, goal, found, values, images):
    site._variance.copy_(site._old[1] / 100)
    return values


def not_a_number(site, goal, found, values, images):
    site._mean.fill_(torch.nan)
    return values


@pytest.mark.parametrize(
    ("match", "reason"), [(harmful, "it is no better with it on 40 calibration images"), (not_a_number, "not finite")]
)
def test_a_repair_that_does_harm_is_not_delivered(evaluator, monkeypatch, match, reason):
    monkeypatch.setattr(NormSite, "match", match)
    monkeypatch.setattr("senseapp.reconstruct.repair_sites.correctable_layers", lambda _model: {})
    applied = applied_to(evaluator)
    before = state_of(applied.model)
    found = measured(evaluator, applied, "kl", repair=True)
    assert found.delivered == "compressed"
    assert reason in found.reason
    assert found.best is found.changes
    assert same(applied.model, before)


def test_proof_images_have_a_veto(evaluator, monkeypatch):
    worse = evaluator.judged(applied_to(evaluator)).changes
    judged = ScheduleEvaluator.judged

    def scripted(bench, applied, images=None, *span):
        return SimpleNamespace(changes=next(answers)) if images is None else judged(bench, applied, images, *span)

    monkeypatch.setattr(ScheduleEvaluator, "judged", scripted)
    answers = iter([worse, tuple(replace(change, delta=change.delta + 0.1) for change in worse)])
    applied = applied_to(evaluator)
    before = state_of(applied.model)
    found = measured(evaluator, applied, "kl", repair=True)
    assert found.delivered == "compressed"
    assert "held-out images" in found.reason
    assert "It was better on calibration images, each half with a fit to the other half." in found.reason
    assert same(applied.model, before)


def test_a_model_that_nothing_was_done_to_is_delivered_as_it_is(evaluator):
    applied = evaluator.apply(manual_schedule(evaluator.result, {}))
    found = measured(evaluator, applied, "kl", repair=True)
    assert found.delivered == "compressed"
    assert kl(found.repaired) == kl(found.changes) == pytest.approx(0, abs=1e-9)
    assert same(applied.model, state_of(evaluator.dense.model))


def test_too_few_images_to_judge_a_repair(evaluator):
    few = replace(evaluator, images=replace(evaluator.images, curves=evaluator.images.curves.subset(range(15))))
    found = measured(few, applied_to(few), "kl", repair=True)
    assert (found.delivered, found.repaired) == ("compressed", ())
    assert "15 calibration images are too few" in found.reason


def test_each_image_is_measured_with_a_repair_that_has_not_seen_it(evaluator):
    first, second = evaluator.repair_halves
    applied = applied_to(evaluator)
    matching, damage = evaluator.matching(applied), []
    found, repaired = measured_quickly(evaluator, applied, "kl", tolerable=0.0)
    for (fit_to, _), (_, judge_on) in ((second, first), (first, second)):
        with matching.fitted(fit_to):
            images = evaluator.repair_images.subset(range(*judge_on))
            damage.append(kl(evaluator.judged(applied, images).changes))
    assert (first[1], second[1]) == ((0, 20), (20, 40))
    assert repaired
    assert kl(found) == pytest.approx(sum(damage) / 2, abs=1e-6)
