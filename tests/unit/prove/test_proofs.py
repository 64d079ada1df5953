"""Proofs on the demo: a sparse run of a few layers, measured once for this file."""

import copy
from dataclasses import replace

import pytest
import torch

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.core.steps import Progress
from senseapp.data.images import TensorImages
from senseapp.data.load import load_demo_images
from senseapp.measure.plan import split
from senseapp.measure.session import Session
from senseapp.networks.sources.load import load_model
from senseapp.prove.evaluator import ScheduleEvaluator, load_proof_images
from senseapp.prove.prove import prove, validate
from senseapp.prove.recommend import strongest_schedule
from senseapp.prove.search_images import with_held_out
from senseapp.records.measurement import loss_with_interval
from senseapp.records.schedule import Limits, ResourceBudget, Schedule, ScheduleEntry, StrongestFound, ValidationResult
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import manual_schedule

pytestmark = pytest.mark.slow


def a_run(config, levels, *, layers=("layer[234]*",), samples=None):
    spec = SensitivitySpec(compression=config, levels=levels, layers=layers, num_samples=samples)
    session = Session.open(RunSpec(sensitivity=spec))
    return session.result(list(session.measure()))


@pytest.fixture(scope="module")
def sparse():
    return a_run(SparsityConfig(), (0.5, 0.8, 0.95))


@pytest.fixture(scope="module")
def evaluator(sparse):
    return ScheduleEvaluator.open(sparse)


@pytest.fixture(scope="module")
def few(evaluator):
    """The same with a tenth of its images, for searches of which the figures do not matter."""
    parts = evaluator.images
    curves, proof = parts.curves.subset(range(64)), parts.proof.subset(range(32))
    return replace(evaluator, images=replace(parts, curves=curves, proof=proof))


def of(changes, metric="top1"):
    return next(change for change in changes if change.metric == metric)


def a_schedule(result, target, **how):
    return make_schedule(result, budget=ResourceBudget(kind="params", target=target), **how)


def test_curves_and_proofs_share_no_image(sparse, evaluator):
    curves, proof = set(evaluator.images.curves.names), set(evaluator.images.proof.names)
    assert (len(curves), len(proof), len(curves & proof)) == (628, 269, 0)
    assert sparse.num_samples == 628
    assert "269 of 897" in sparse.notes[0]


def test_the_split_depends_on_the_seed_only():
    images = load_demo_images()
    assert split(images, 1)[1].names == split(images, 1)[1].names != split(images, 2)[1].names


@pytest.mark.parametrize(("count", "indicative", "kept"), [(333, False, 0), (334, False, 100), (900, True, 0)])
def test_few_images_and_noise_are_not_split(count, indicative, kept):
    curves, held_out = split(TensorImages(torch.zeros(count, 1, 2, 2), indicative=indicative), 0)
    assert (len(curves), len(held_out)) == (count - kept, kept)


@pytest.mark.parametrize(
    ("samples", "kind", "curves", "held_out", "note"),
    [
        (100, "demo", 100, 797, "Checked on 797 images not used above."),
        (850, "demo", 850, 0, "fewer than 100 others"),
        (128, "random", 128, 128, "Checked on 128 images"),
        (None, "random", 128, 0, "Measured on the 128 images"),
    ],
)
def test_images_for_proofs_are_others_where_there_are_enough(sparse, evaluator, samples, kind, curves, held_out, note):
    spec = replace(sparse.spec, sensitivity=replace(sparse.spec.sensitivity, num_samples=samples))
    spec = replace(spec, data=replace(spec.data, kind=kind))
    parts = load_proof_images(replace(sparse, spec=spec, num_samples=curves), load_model(ModelSpec()))
    assert len(parts.curves) == curves
    assert note in parts.note
    assert parts.held_out == bool(held_out)
    assert not held_out or len(parts.proof) == held_out
    assert kind == "random" or not held_out or not set(parts.curves.names) & set(parts.proof.names)
    of_files = with_held_out(replace(evaluator, images=parts))
    assert of_files.images.held_out == bool(held_out)  # what the layers were measured on is not
    assert len(of_files.images.proof) == (held_out or int(0.3 * curves))
    fitted = set(of_files.images.curves.names)
    assert kind == "random" or not (fitted | set(of_files.repair_images.names)) & set(of_files.images.proof.names)


def test_a_proof_equals_measuring_by_hand(evaluator):
    schedule = a_schedule(evaluator.result, 0.25)
    proven = prove(evaluator, schedule, repair=False)
    applied, proof = evaluator.apply(schedule), evaluator.images.proof
    with torch.no_grad():
        correct = (applied.model(proof.batch(0, 269)).argmax(1) == proof.labels).double().mean()
        dense = (load_model(ModelSpec()).module(proof.batch(0, 269)).argmax(1) == proof.labels).double().mean()
    change = of(proven.result.changes)
    assert (change.value, change.baseline) == (pytest.approx(float(correct)), pytest.approx(float(dense)))
    assert change.delta == pytest.approx(change.baseline - change.value)
    assert change.ci_low <= change.delta <= change.ci_high
    assert change.num_samples == 269
    assert proven.result.predicted == schedule.predicted_damage
    assert proven.result.repaired == proven.result.uniform_repaired == ()


def test_the_uniform_schedule_costs_as_much_and_does_more_damage(evaluator):
    result = prove(evaluator, a_schedule(evaluator.result, 0.75), repair=True).result
    assert of(result.uniform, "kl").delta > of(result.changes, "kl").delta
    assert of(result.uniform_repaired, "kl").delta > of(result.repaired, "kl").delta
    assert of(result.repaired).value > of(result.changes).value
    zeros = result.sizes["zeros"][1]
    assert zeros == pytest.approx(0.75 * sum(layer.num_params for layer in evaluator.profile.layers), rel=0.01)
    assert "bytes" not in result.sizes  # sizes are those of files, once there are some
    zero_macs = sum(
        entry.level * evaluator.profile.layer(entry.layer).macs
        for entry in result.schedule.entries
        if entry.compression != "none"
    )
    assert result.sizes["macs"] == (
        evaluator.profile.macs,
        pytest.approx(evaluator.profile.macs - zero_macs, rel=0.001),
    )
    assert any("normalisation layer" in note for note in result.notes)
    (off,) = (note for note in result.notes if "than predicted" in note)
    assert off.startswith("Before the repair, the layers lose ")
    assert off.endswith(f" What is delivered loses {loss_with_interval(of(result.repaired, 'kl'))}.")


def test_a_manual_schedule_is_proven_as_it_is_and_the_result_survives_its_file(evaluator):
    schedule = manual_schedule(evaluator.result, {"layer2.0.conv1": 0.9, "layer3.1.conv2": 0.9})
    result = prove(evaluator, schedule, repair=False).result
    assert result.schedule == schedule
    assert result.uniform
    assert loads(dumps(result), ValidationResult) == result


def test_the_bench_leaves_its_model_as_it_was(evaluator):
    before = copy.deepcopy(evaluator.dense.model.state_dict())
    prove(evaluator, a_schedule(evaluator.result, 0.5), repair=True)
    assert all(torch.equal(value, before[name]) for name, value in evaluator.dense.model.state_dict().items())
    assert not any(module.training for module in evaluator.dense.model.modules())


def test_another_model_or_a_schedule_of_one_is_refused(sparse):
    entry = ScheduleEntry(layer="features.0", members=("features.0",), compression="sparsity", level=0.5)
    with pytest.raises(InvalidSchedule, match=r"another model.*features\.0"):
        validate(sparse, Schedule(model="vgg", method="manual", entries=(entry,)), repair=False)
    fewer = replace(sparse, profile=replace(sparse.profile, layers=sparse.profile.layers[:-1]))
    with pytest.raises(InvalidSchedule, match="not the model that the run measured"):
        ScheduleEvaluator.open(fewer)


def test_the_strongest_schedule_stays_within_the_drop(evaluator):
    said: list[str] = []
    reporting = replace(evaluator, progress=Progress(said.append))
    found = strongest_schedule(reporting, "params", 0.03, repair=True, rounds=2)
    applied = evaluator.apply(found.schedule)
    evaluator.matching(applied).fit()
    assert of(evaluator.judged(applied, evaluator.images.curves).changes).delta <= 0.03
    assert found.schedule.achieved["params"] > 0.2
    held = [tried.figure for tried in found.tried if tried.change("top1").delta <= 0.03]
    assert found.schedule.achieved["params"] == held[-1]
    assert "Measuring schedule 3 of at most 3" in said
    assert "Measuring schedule 3 of at most 3 · 0 of 256 images" in said  # calibration images, apart from the others
    assert len(found.tried) == 3
    assert loads(dumps(found), StrongestFound) == found


def test_a_proof_can_be_stopped_between_two_passes(evaluator):
    class Stopped(Exception):
        pass

    def stop(sentence: str) -> None:
        if "256 of 269 images" in sentence:
            raise Stopped(sentence)

    stopping = replace(evaluator, progress=Progress(stop))
    with pytest.raises(Stopped, match="Measuring the compressed model"):
        prove(stopping, a_schedule(evaluator.result, 0.2), repair=False)


def test_the_search_keeps_to_locked_layers(few):
    found = strongest_schedule(few, "params", 0.5, limits=Limits(fixed={"layer3.0.conv1": 0.0}), rounds=1)
    (entry,) = (entry for entry in found.schedule.entries if entry.layer == "layer3.0.conv1")
    assert entry.locked
    assert entry.compression == "none"


def test_no_schedule_within_the_drop_is_said(few):
    with pytest.raises(InfeasibleBudget, match="gentlest schedule"):
        strongest_schedule(few, "params", -1.0, rounds=1)
    with pytest.raises(InvalidSpec, match="cannot be measured on these images"):
        strongest_schedule(few, "params", 0.1, metric="speed", rounds=1)


@pytest.mark.wide
def test_quantization_and_pruning_are_proven_too():
    bits = a_run(QuantizationConfig(), (8.0, 4.0, 2.0), samples=100)
    schedule = make_schedule(bits, budget=ResourceBudget(kind="bytes", target=0.6))
    result = prove(ScheduleEvaluator.open(bits), schedule, repair=True).result
    assert of(result.repaired).delta < 0.05
    assert result.sizes["macs"][0] == result.sizes["macs"][1]  # no kernel skips what rounding made zero
    pruned = a_run(PruningConfig(), (0.25, 0.5), samples=100)
    plan = make_schedule(pruned, budget=ResourceBudget(kind="macs", target=0.15))
    proven = prove(ScheduleEvaluator.open(pruned), plan, repair=True)
    before, after = proven.result.sizes["params"]
    assert after < before == pruned.profile.num_params
    assert proven.result.uniform
    assert of(proven.result.repaired).value > of(proven.result.changes).value - 0.02
