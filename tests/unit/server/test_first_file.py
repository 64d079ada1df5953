"""The file that is made before the layers of a run: when, what becomes of a failure or a cancel, and for whom."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from senseapp.metrics import METRICS
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.records.candidate import Delivery
from senseapp.records.jobs import RunState
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.records.spec import ModelSpec
from senseapp.server import execution
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask, RecommendationTask, original_in_int8
from senseapp.server.execution import Measurement
from senseapp.server.job_progress import JobCancelled
from senseapp.server.service import Service
from senseapp.server.settings import ServerSettings
from senseapp.server.tasks import EarlierRun, TaskContext
from senseapp.store.run_folder import RunFolder
from tests.deployments import a_candidate
from tests.fake_session import SPEC, TOTAL, FakeEngine, a_backend, fake_calibration

LONG = 1e9


class Stop(Exception):
    """What a cancel raises."""


class Events:
    """Observes a task and keeps what came in which order."""

    def __init__(self, stops_at: str = "") -> None:
        self.found: list[str] = []
        self.left: list[tuple[int, int, float]] = []
        self._stops_at = stops_at

    def phase(self, sentence: str) -> None:
        self.found.append(sentence)
        if sentence and sentence == self._stops_at:
            raise Stop

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float, **_: object) -> None:
        self.found.append(f"opened with {len(head.estimates)} estimates")
        self.left.append((done, total, predicted_seconds))

    def measured(self, measurement: LayerMeasurement) -> None:
        self.found.append("estimate" if measurement.estimated else "layer")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a file in two steps, without an engine; holds the exception to raise, if any."""
    failures: list[str] = []

    def keep_original(_task: RecommendationTask, progress, context: TaskContext) -> None:
        progress("Writing")
        if failures:
            raise {"memory": MemoryError(), "other": RuntimeError("no such operator")}[failures[0]]
        context.folder.save("first", Delivery(candidates=(a_candidate("int8", size=10, share=0.5, lost=0.0),)))

    monkeypatch.setattr(ScheduleEvaluator, "open", lambda _result, *, data_roots, progress: progress)
    monkeypatch.setattr("senseapp.prove.search_images.with_held_out", lambda progress: progress)
    monkeypatch.setattr(execution, "time_convolutions", fake_calibration)
    monkeypatch.setattr(RecommendationTask, "keep_original", keep_original)
    return failures


def carry_out(folder: RunFolder, events: Events, *, seconds: float = LONG) -> RunResult:
    folder.make()
    context = TaskContext(folder=folder, observer=events, open_session=FakeEngine())
    return Measurement(run_id="run", spec=SPEC, first_file_seconds=seconds).carry_out(context)


def test_it_comes_between_the_estimates_and_the_layers(made, tmp_path) -> None:
    events, folder = Events(), RunFolder(tmp_path / "run")
    result = carry_out(folder, events)
    after = events.found.index("Preparing the 8-bit file · Writing")
    assert events.found[:after].count("estimate") == TOTAL
    assert events.found[after + 1 :] == ["layer"] * TOTAL
    assert events.left == [(0, TOTAL, 8.0)]
    assert len(folder.candidates()) == 1
    assert len(result.measurements) == TOTAL


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_it_is_not_made_where_it_takes_long_or_none_is_wanted(made, tmp_path, seconds) -> None:
    events, folder = Events(), RunFolder(tmp_path / "run")
    carry_out(folder, events, seconds=seconds)
    assert folder.candidates() == ()
    assert not any("8-bit file" in each for each in events.found)


def test_a_run_that_is_told_the_speed_does_not_time_the_machine(made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(execution, "time_convolutions", lambda: pytest.fail("timed again"))
    folder = RunFolder(tmp_path / "run")
    folder.make()
    context = TaskContext(folder=folder, observer=Events(), open_session=FakeEngine())
    Measurement(run_id="run", spec=SPEC, first_file_seconds=LONG, speed=fake_calibration()).carry_out(context)
    assert len(folder.candidates()) == 1


@pytest.mark.parametrize("failure", ["memory", "other"])
def test_one_that_fails_leaves_the_run_complete(made, tmp_path, failure) -> None:
    made.append(failure)
    folder = RunFolder(tmp_path / "run")
    assert len(carry_out(folder, Events()).measurements) == TOTAL
    assert folder.candidates() == ()


def test_a_cancel_ends_the_run_and_a_resumed_one_makes_the_file(made, tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Stop):
        carry_out(folder, Events(stops_at="Preparing the 8-bit file · Writing"))
    assert not folder.finished
    carry_out(folder, Events())
    assert len(folder.candidates()) == 1


def test_a_run_that_goes_on_does_not_make_it_again(made, tmp_path) -> None:
    folder, engine = RunFolder(tmp_path / "run"), FakeEngine()

    def stop(number: int) -> None:
        if number == 2:
            raise Stop

    engine.before_yield = stop
    folder.make()
    context = TaskContext(folder=folder, observer=Events(), open_session=engine)
    task = Measurement(run_id="run", spec=SPEC, first_file_seconds=LONG)
    with pytest.raises(Stop):
        task.carry_out(context)
    engine.before_yield = lambda number: None
    again = Events()
    task.carry_out(replace(context, observer=again))
    assert not any("8-bit file" in each for each in again.found)


@pytest.mark.parametrize(
    ("goal", "mode", "seconds", "expected"),
    [
        ("smaller", "exact", 120, 1200),
        ("faster", "exact", 120, 1200),
        ("targets", "exact", 120, 0),  # a schedule is wanted, and no file
        ("look", "exact", 120, 0),
        ("smaller", "quick", 120, 0),
        ("smaller", "exact", 0, 0),
    ],
)
def test_who_gets_one(tmp_path, goal, mode, seconds, expected) -> None:
    backend = Backend(
        tmp_path, workers=0, settings=ServerSettings(recommend_seconds=seconds), calibrate=fake_calibration
    )
    Service(backend).start(replace(SPEC, goal=goal, sensitivity=replace(SPEC.sensitivity, mode=mode)))
    (task,) = backend.runner.unfinished()
    assert isinstance(task, Measurement)
    assert task.first_file_seconds == expected
    backend.close()


@pytest.mark.parametrize(("key", "is_taken"), [("same", True), ("other", False)])
def test_a_file_of_the_same_weights_and_images_is_taken_from_another_run(tmp_path, monkeypatch, key, is_taken) -> None:
    task, made = original_in_int8("run", 0.01), RunFolder(tmp_path / "earlier")
    made.make()
    candidate = a_candidate("int8", size=3, share=0.5, lost=0.0)
    made.save(task.key, Delivery(candidates=(candidate,), content_key="same"))
    (made.path / candidate.file).write_bytes(b"abc")
    folder = RunFolder(tmp_path / "run")
    folder.make()
    gone = RunFolder(tmp_path / "deleted").path
    earlier = tuple(EarlierRun(title="", folder=path) for path in (gone, made.path))
    context = TaskContext(folder=folder, observer=Events(), earlier=earlier)
    evaluator = SimpleNamespace(original_key=lambda runtime: key, runtime=lambda name: None)

    def make(*_: object) -> None:
        raise Stop

    monkeypatch.setattr("senseapp.prove.deploy.original_source", make)
    if not is_taken:
        with pytest.raises(Stop):
            task.make(evaluator, context)
        return
    assert task.make(evaluator, context).candidates == (candidate,)
    assert (folder.path / candidate.file).read_bytes() == b"abc"


def test_what_follows_a_run_is_part_of_it_and_goes_on_after_a_cancel(tmp_path, monkeypatch) -> None:
    engine, ends = FakeEngine(), [JobCancelled(), None]
    backend = a_backend(tmp_path, engine)
    monkeypatch.setattr(backend.speeds, "follows", lambda *_: "schedule")
    states = []

    def follow(task: RecommendationTask, _context: TaskContext) -> None:
        states.append(service.snapshot(task.run_id).state)
        if (error := ends.pop(0)) is not None:
            raise error

    monkeypatch.setattr(RecommendationTask, "carry_out", follow)
    service = Service(backend)
    run_id = service.start(SPEC)
    assert backend.runner.run_next()
    assert service.run(run_id).state is RunState.CANCELLED
    assert len(service.result(run_id).measurements) == TOTAL
    service.resume(run_id)
    assert backend.runner.run_next()
    assert (service.run(run_id).state, service.snapshot(run_id).fraction) == (RunState.DONE, 1.0)
    assert states == [RunState.RUNNING] * 2  # a run is not finished while its files are made
    assert len(engine.opened) == 1  # nothing is measured again
    backend.close()


def test_the_file_that_follows_a_run_is_its_first_file(tmp_path, monkeypatch) -> None:
    """The layers of a detector have no score of boxes, by which its files are judged: it was made twice."""
    backend, asked, made = a_backend(tmp_path, FakeEngine()), [], []
    monkeypatch.setattr(backend.speeds, "follows", lambda *_: "file")
    monkeypatch.setattr(DeliverTask, "carry_out", lambda task, _context: asked.append(task.key))
    monkeypatch.setattr(DeliverTask, "make", lambda task, *_: made.append(task) or Delivery(candidates=kept))
    service = Service(backend)
    run_id = service.start(replace(SPEC, model=ModelSpec(library="demo", name="shapes_detector", task="detection")))
    assert backend.runner.run_next()
    evaluator, folder = SimpleNamespace(result=service.result(run_id)), backend.store.folder(run_id)
    kept = (a_candidate("int8", lost=0.002),)
    for allowed in (None, 0.004, 0.001):  # a file serves a stricter loss that it does not exceed
        task = RecommendationTask(run_id=run_id, allowed_drop=allowed)
        task.keep_original(evaluator, TaskContext(folder=folder, observer=Events()))
    assert folder.load(Delivery, asked[0]) is not None
    assert [task.settings.most_changed for task in made] == [METRICS[evaluator.result.judged_by].tolerable, 0.001]
    backend.close()
