"""The search of a recommendation on made-up losses, against a plain look at every target; and one on the demo."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec
from senseapp.core.steps import Progress
from senseapp.metrics import METRICS, change_of
from senseapp.metrics.bounds import TestSequence
from senseapp.prove import recommend
from senseapp.prove.prove import Promised
from senseapp.records.jobs import RunState
from senseapp.records.measurement import Status
from senseapp.records.promise import Promise, sequence_after
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ROUNDED_INPUTS, Schedule, TriedTarget, ValidationResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.run_tasks import LayerAnswers, Verification
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from tests.cases import examples, first_of
from tests.few_digits import NUM_DIGITS
from tests.pages import records

ALLOWED = 0.01
LEVELS = {SparsityConfig: (0.25, 0.5, 0.75), QuantizationConfig: (3, 4, 8)}


def loss_of(target: float, edge: float, *, fewer_is_more: bool) -> float:
    """Nothing up to the edge, and more and more behind it."""
    beyond = (edge - target) if fewer_is_more else (target - edge)
    return max(0.0, beyond) + (2 * ALLOWED if beyond > 0 else 0.0)


class MadeUp:
    """Stands for everything that measures: the curves' images fail beyond one edge, the proof's beyond another."""

    def __init__(self, config, curves_edge: float, proof_edge: float) -> None:
        self.result = records.result(RunSpec(sensitivity=SensitivitySpec(compression=config(), levels=LEVELS[config])))
        self.fewer = config is QuantizationConfig
        self.curves_edge, self.proof_edge = curves_edge, proof_edge
        self.measured: list[tuple[str, float]] = []
        self.proven: list[float] = []

    def loss(self, target: float, edge: float):
        return records.change("top1", loss_of(target, edge, fewer_is_more=self.fewer), 0.004)

    def trials(self, evaluator, kind, metric, repair, tolerable):
        tried: list[TriedTarget] = []

        def measure(schedule: Schedule) -> float:
            target = schedule.budget.target
            self.measured.append((schedule.method, target))
            change = self.loss(target, self.curves_edge)
            tried.append(TriedTarget(figure=schedule.achieved[kind], changes=(change,)))
            return change.delta

        return SimpleNamespace(measure=measure, tried=tried)

    def judge(self, evaluator, schedule: Schedule, *, repair: bool, adapting: str, veto: bool):
        if adapting == "off":  # adapted weights, which are tried at last, lose as much here
            self.proven.append(schedule.budget.target)
        changes = (self.loss(schedule.budget.target, self.proof_edge),)
        result = ValidationResult(schedule=schedule, changes=changes, uniform=changes)
        found = SimpleNamespace(best=changes, tried=1)

        def proven(*, tried: int) -> SimpleNamespace:
            return SimpleNamespace(result=replace(result, tried=tried))

        return SimpleNamespace(schedule=schedule, found=found, proven=proven)

    def recommended(self) -> Recommendation:
        task = SimpleNamespace(metrics=lambda **_: ("top1", "kl", "agreement"))
        images = SimpleNamespace(curves=SimpleNamespace(labels=None), proof=None, held_out=True)
        evaluator = SimpleNamespace(
            result=self.result,
            images=images,
            task=task,
            profile=self.result.profile,
            progress=Progress(),
            usual_adapting="off",
            couplings=(),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recommend, "Trials", self.trials)
            patch.setattr(recommend, "MeasuredSchedule", self.judge)
            return self.found(evaluator)

    def found(self, evaluator) -> Recommendation:
        return recommend.recommend(evaluator).record


class MadeUpPromise(MadeUp):
    """The same with counted changes, of so many images as make bounds narrow."""

    images = 20_000

    def loss(self, target: float, edge: float):
        lost = float(round(self.images * min(1.0, loss_of(target, edge, fewer_is_more=self.fewer))))
        return change_of("top1", (self.images, self.images, lost, lost, lost))

    def judge(self, evaluator, schedule: Schedule, *, repair: bool, adapting: str, veto: bool):
        assert not veto  # held-out images choose nothing under a promise
        return super().judge(evaluator, schedule, repair=repair, adapting=adapting, veto=veto)

    def recommended(self, promise: Promise) -> Recommendation:
        self.promise = promise
        return super().recommended()

    def found(self, evaluator) -> Recommendation:
        evaluator.images.proof = range(self.images)
        promised = Promised(promise=self.promise, tests=sequence_after([], self.promise))
        return recommend.recommend(evaluator, promised=promised).record


@pytest.mark.parametrize("edge", [0.8, 0.25])
def test_the_bound_on_held_out_images_decides_and_each_refusal_is_a_test(edge: float) -> None:
    promise = Promise(most=ALLOWED)
    found = MadeUpPromise(SparsityConfig, 0.7, edge).recommended(promise)
    assert (found.promise, found.allowed_drop) == (promise, ALLOWED)
    refusals = len(found.refused)
    assert (refusals > 1) == (edge < 0.7)  # the edge of the curves' images
    assert found.validation.tried == refusals + 1
    assert "On new images: " in found.evidence
    tests = TestSequence(error=0.05)
    for _ in range(refusals):
        tests.add(passes=False)
    assert METRICS["top1"].upper_bound(found.loss.moments, 1 - tests.next_error) <= ALLOWED


def test_where_nothing_keeps_a_promise_the_record_says_so() -> None:
    found = MadeUpPromise(SparsityConfig, 0.7, -1.0).recommended(Promise(most=ALLOWED))
    assert found.schedule is None
    assert found.headline == "Nothing can be saved for a loss of at most 1 point, with 95 % certainty"
    assert loads(dumps(found), Recommendation) == found


def test_a_search_does_not_begin_with_too_few_held_out_images() -> None:
    made_up = MadeUpPromise(SparsityConfig, 0.7, 0.7)
    made_up.images = 200
    with pytest.raises(InvalidSpec, match=r"takes at least 315 unseen images. On the 200 unseen images"):
        made_up.recommended(Promise(most=ALLOWED))
    assert made_up.measured == []


def stronger(config, first: float, second: float) -> bool:
    return first < second if config is QuantizationConfig else first > second


def milder(config, target: float) -> list[float]:
    if config is QuantizationConfig:
        return [target + 1, target + 3, target + 7]
    return [round(target / 2**halvings, 9) for halvings in (1, 2, 3) if target / 2**halvings >= 0.01]


@pytest.mark.slow
@pytest.mark.parametrize("config", first_of(LEVELS))
@settings(deadline=None, max_examples=examples(25))
@given(curves=st.floats(0.0, 1.0), proof=st.floats(0.0, 1.0))
def test_the_strongest_schedule_that_both_sets_of_images_let_pass(config, curves, proof) -> None:
    low, high = (8.0, 3.0) if config is QuantizationConfig else (0.0, 0.8)
    edges = [low + share * (high - low) for share in (curves, proof)]
    made_up = MadeUp(config, *edges)
    found = made_up.recommended()
    ours = [target for method, target in made_up.measured if method == "optimal"]
    held = [target for target in ours if not stronger(config, target, edges[0])]
    order = sorted(held, reverse=config is not QuantizationConfig)[:3]  # of those, at most three are proven
    mildest = (max if config is QuantizationConfig else min)(order or ours)
    order += milder(config, mildest)  # and three that were not measured
    passing = [target for target in order if not stronger(config, target, edges[1])]
    assert made_up.proven == order[: order.index(passing[0]) + 1 if passing else len(order)]
    assert len(found.refused) == len(made_up.proven) - bool(passing)
    if not passing:
        assert found.schedule is None
        assert found.headline.startswith("Nothing can be saved")
        return
    assert found.schedule.budget.target == passing[0]
    assert found.loss.delta <= ALLOWED
    failed = [target for target in ours if stronger(config, target, edges[0])]
    if failed:  # what lies between the last that held and the first that did not is an eighth of a step of the range
        gap = abs(min(failed, key=lambda each: abs(each - order[0])) - order[0])
        assert gap <= abs(high - low) / 5 / 8 + (0.1 if config is QuantizationConfig else 0.01) + 1e-9  # of rounding


def test_where_every_layer_failed_the_record_says_so() -> None:
    made_up = MadeUp(SparsityConfig, 0.5, 0.5)
    failed = tuple(replace(each, status=Status.FAILED, changes=()) for each in made_up.result.measurements)
    made_up.result = replace(made_up.result, measurements=failed)
    found = made_up.recommended()
    assert (found.schedule, found.tried, made_up.measured) == (None, (), [])
    assert found.headline == "No schedule could be made"
    assert "nothing to schedule" in found.evidence
    assert loads(dumps(found), Recommendation) == found


def test_the_words_say_what_was_measured() -> None:
    found = MadeUp(SparsityConfig, 0.6, 0.6).recommended()
    percent = 100 * found.schedule.achieved["params"]
    assert found.headline == f"You can remove {percent:.0f} % of the weights and keep 98.0 % of the answers right"
    assert found.evidence == (
        "Measured on 512 unseen images: 98.0 % before, 98.0 % after, 0 points lost (−0.4 to 0.4; 1.0 "
        "allowed). The same level in every layer loses 0 points."
    )
    rounded = replace(found, validation=replace(found.validation, notes=(ROUNDED_INPUTS,))).evidence
    assert rounded.startswith("Measured on 512 unseen images, with inputs of layers rounded too: 98.0 % before")
    unlabelled = records.change("agreement", 12 / 24, 0.1)
    validation = replace(found.validation, changes=(replace(unlabelled, num_samples=24),), uniform=())
    words = replace(found, metric="agreement", validation=validation, held_out=False).evidence
    assert words.startswith("Measured on 24 images also used to make or choose it: 12 of 24 answers change, 50.0")


def test_the_proof_of_adapted_weights_is_found_where_the_page_looks_for_it() -> None:
    found, task = MadeUp(SparsityConfig, 0.6, 0.6).recommended(), RecommendationTask(run_id="run")
    adapted = replace(found, validation=replace(found.validation, adapting="minutes"))
    assert task.proof(adapted) == Verification(run_id="run", schedule=found.schedule, adapting="minutes")
    assert task.proof(replace(found, schedule=None, validation=None)) is None


@pytest.fixture(scope="module")
def recommended(few_digits, quick_times, tmp_path_factory):
    """A run of the demo's last layers that holds no image out, and the recommendation that is a part of it."""
    sensitivity = SensitivitySpec(compression=SparsityConfig(), levels=(0.5, 0.9), layers=("layer4.1.conv1",))
    backend = Backend(tmp_path_factory.mktemp("home"), workers=0, settings=ServerSettings(recommend_seconds=10_000))
    service = Service(backend)
    run_id = service.start(RunSpec(sensitivity=sensitivity))
    assert backend.runner.run_next()
    assert (service.run(run_id).state, service.run(run_id).error) == (RunState.DONE, "")
    assert not backend.runner.run_next()
    yield service, run_id, service.work.outcome(RecommendationTask(run_id=run_id))
    backend.close()


def test_a_run_whose_files_fail_is_done_and_says_why(few_digits, tmp_path, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise InvalidSpec("The runtime is gone.")

    monkeypatch.setattr(RecommendationTask, "carry_out", fails)
    backend = Backend(tmp_path, workers=0, settings=ServerSettings(recommend_seconds=10_000))
    service = Service(backend)
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), layers=("fc",), num_samples=16)
    run_id = service.start(RunSpec(sensitivity=spec, goal="targets"))
    assert backend.runner.run_next()
    record = service.run(run_id)
    assert record.state is RunState.DONE
    assert record.error == "All layers are measured. The files could not be made: The runtime is gone."
    backend.close()


@pytest.mark.wide
def test_all_files_of_a_run_without_held_out_images_are_measured_on_the_same_share(recommended) -> None:
    service, run_id, outcome = recommended
    assert service.result(run_id).num_samples == NUM_DIGITS
    found = service._backend.store.folder(run_id).candidates()
    assert {each.form for each in found} > {"int8", "weights", "onnx"}
    assert {(each.images, each.loss.baseline) for each in found} == {(int(0.3 * NUM_DIGITS), found[0].loss.baseline)}
    assert {each.held_out for each in found if each.schedule is None} == {True}
    assert {each.held_out for each in found if each.schedule is not None} == {outcome.held_out} == {False}


@pytest.mark.wide
def test_the_answers_of_one_layer_are_compared_on_request(recommended) -> None:
    service, run_id, _ = recommended
    task = LayerAnswers(run_id=run_id, layer="layer4.1.conv1", level=0.9)
    service.work.start(task)
    assert service._backend.runner.run_next()
    found, result = service.work.outcome(task), service.result(run_id)
    measured = next(item for item in result.measurements if item.key == ("layer4.1.conv1", 0.9))
    assert found.num_changed == round(measured.change("agreement").delta * result.num_samples)
    assert found.subject == "layer4.1.conv1 at 90 %"
