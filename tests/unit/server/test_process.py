"""The app's end of the conversation with a process that works for it, whatever becomes of that process."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.codec import dumps
from senseapp.core.errors import ClusterFailed, InvalidDataset, ProcessLost, ReadingStopped, SenseError
from senseapp.records.check import CheckSpec
from senseapp.records.measurement import LayerMeasurement, RunResult
from senseapp.records.schedule import Limits, Schedule
from senseapp.records.spec import DataSpec, HistogramSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.checks import CheckTask
from senseapp.server.execution import Measurement, cluster_for
from senseapp.server.job_progress import JobCancelled
from senseapp.server.process import processes
from senseapp.server.process.child import AppObserver
from senseapp.server.process.processes import JobProcess, JobProcesses, carry_out_in, carry_out_on_cluster
from senseapp.server.process.requester import Line, decode_task, encode_task
from senseapp.server.run_tasks import DropLimit, HistogramTask, StrongestSearch, Verification
from senseapp.server.tasks import EarlierRun, RunTask, TaskContext
from senseapp.store.run_folder import RunFolder
from tests.fake_session import a_measurement, a_result

PRELUDE = """
import json, sys, time
def say(kind, body=None):
    print(json.dumps([kind, body]), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
kind, request = hear()
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., JobProcess]]:
    """Start a process that runs some lines instead of the real ones; whatever is left of them ends after the test."""
    monkeypatch.setattr(processes, "CANCEL_SECONDS", 0.05)
    monkeypatch.setattr(processes, "_LEAVE_SECONDS", 0.5)
    found: list[JobProcess] = []

    def start(*script: str, **options: Any) -> JobProcess:
        head = json.dumps(json.loads(dumps(a_result())))
        code = "\n".join((PRELUDE, f"HEAD = json.loads({head!r})", *map(textwrap.dedent, script)))

        monkeypatch.setattr(JobProcess, "program", ("-c", code))
        found.append(JobProcess(**options))
        return found[-1]

    yield start
    for process in found:
        process.close()


class Observer:
    """Remembers what a task told, and stops it where ``stop`` says so."""

    def __init__(self, stop: Callable[[str], None] = lambda sentence: None) -> None:
        self.told: list[Any] = []
        self.stop = stop

    def phase(self, sentence: str) -> None:
        self.told += [sentence] if sentence else []
        self.stop(sentence)

    def opened(self, head: RunResult, **figures: float) -> None:
        self.told.append((head, figures))

    def measured(self, measurement: LayerMeasurement) -> None:
        self.told.append(measurement)


TASK = Measurement(run_id="r", spec=RunSpec())


def context_of(observer: Observer | None = None) -> TaskContext:
    return TaskContext(
        folder=RunFolder(Path("/runs/r")),
        observer=observer or Observer(),
        data_roots=(Path("/data"),),
        earlier=(EarlierRun(title="Monday", folder=Path("/runs/a"), content_key="abc"),),
    )


def carry_out(process: JobProcess, observer: Observer | None = None) -> None:
    carry_out_in(process, TASK, context_of(observer), device="cpu", address="auto")


def test_what_a_process_tells_reaches_the_observer(started: Callable[..., JobProcess]) -> None:
    observer = Observer()
    found = dumps(a_measurement("stem", 0.25))
    process = started(
        f"""
        assert kind == "task" and request["task"]["type"].endswith(":Measurement")
        assert (request["address"], request["device"]) == ("auto", "cpu")
        assert (request["folder"], request["data_roots"]) == ("/runs/r", ["/data"])
        assert request["earlier"] == [{{"title": "Monday", "folder": "/runs/a", "content_key": "abc"}}]
        say("phase", "Loading the model")
        say("opened", [HEAD, {{"done": 1, "total": 8, "predicted_seconds": 5.0, "content_key": "def"}}])
        say("measured", json.loads({found!r}))
        say("done")
        """
    )
    carry_out(process, observer)
    assert observer.told == [
        "Loading the model",
        (a_result(), {"done": 1, "total": 8, "predicted_seconds": 5.0, "content_key": "def"}),
        a_measurement("stem", 0.25),
    ]


def test_the_process_tells_what_the_task_tells_it() -> None:
    """The two ends of the conversation fit together."""
    said: list[Line] = []
    app = AppObserver(lambda kind, body: said.append(Line(kind=kind, body=json.loads(json.dumps(body)))))
    app.phase("Loading")
    app.phase("")
    app.opened(a_result(), done=0, total=8, predicted_seconds=1.5)
    app.measured(a_measurement("stem", 0.25, estimated=True))
    app.measured(a_measurement("head", 0.5))

    class Ear:
        def send(self, kind: str, body: Any) -> None:
            said.append(Line(kind="done"))

        def receive(self, *wanted: str, progress: Callable[[str], None]) -> Line:
            while (line := said.pop(0)).kind not in wanted:
                progress(line.body)
            return line

    observer = Observer()
    carry_out(Ear(), observer)  # type: ignore[arg-type]
    assert observer.told == [
        "Loading",
        (a_result(), {"done": 0, "total": 8, "predicted_seconds": 1.5}),
        a_measurement("stem", 0.25, estimated=True),
        a_measurement("head", 0.5),
    ]


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("sys.exit(1)", ProcessLost, r"ended unexpectedly \(status 1\)\. What was measured is kept"),
        ('say("refused", ["InvalidDataset", "There is no image."])', InvalidDataset, "There is no image."),
        ('say("refused", ["InfeasibleBudget", "Too little."])', Exception, "Too little."),
        ('say("crashed", "Traceback: KeyError")', RuntimeError, "KeyError"),
        ('sys.stdout.write("[\\\\"opened")', ProcessLost, "ended unexpectedly"),
    ],
    ids=["ended", "refused", "other error", "crashed", "torn line"],
)
def test_a_task_that_cannot_be_done_says_why(
    script: str, kind: type[Exception], words: str, started: Callable[..., JobProcess]
) -> None:
    with pytest.raises(kind, match=words):
        carry_out(started(script))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("sys.exit(4)", r"ended unexpectedly \(status 4\)"),
        ("import os; os.kill(os.getpid(), 9)", "was killed, most often because memory ran out"),
    ],
    ids=["crash", "killed"],
)
def test_a_process_that_dies_in_mid_run_ends_the_run_with_a_sentence(
    ending: str, words: str, started: Callable[..., JobProcess]
) -> None:
    observer = Observer()
    process = started(f"say('measured', json.loads({dumps(a_measurement())!r}))\n{ending}")
    with pytest.raises(SenseError, match=words):
        carry_out(process, observer)
    assert observer.told == [a_measurement()]
    for _ in range(2):  # even where the request could still be written
        with pytest.raises(SenseError, match="What was measured is kept"):
            process.receive("done", progress=lambda sentence: None)
        with pytest.raises(SenseError, match="What was measured is kept"):
            carry_out(process)


def test_a_check_whose_process_dies_names_the_files(started: Callable[..., JobProcess]) -> None:
    models = [ModelSpec(library="onnx", checkpoint=f"/here/{name}.onnx", task="classification") for name in "ab"]
    task = CheckTask(run_id="", spec=CheckSpec(reference=models[0], candidate=models[1], data=DataSpec()))
    with pytest.raises(ReadingStopped, match=r"^a\.onnx or b\.onnx ended the process that ran it.*choose another\.$"):
        carry_out_in(started("sys.exit(4)"), task, TaskContext(folder=RunFolder(Path()), observer=Observer()),
                     device="cpu")  # fmt: skip


def test_a_cancel_ends_a_process_that_is_silent_and_deaf(started: Callable[..., JobProcess]) -> None:
    heard: list[str] = []

    def cancel_at_third(sentence: str) -> None:
        heard.append(sentence)
        if len(heard) == 3:
            raise JobCancelled

    process = started("time.sleep(600)")
    pool = JobProcesses(start=lambda: process)
    with pytest.raises(JobCancelled):
        pool.carry_out(TASK, context_of(Observer(cancel_at_third)), device="cpu")
    assert heard == ["", "", ""]  # there was nothing new to say
    assert not process.alive
    pool.close()


def test_what_the_process_logs_is_logged_here(
    started: Callable[..., JobProcess], caplog: pytest.LogCaptureFixture
) -> None:
    script = 'say("log", ["senseapp.measure", 30, "100 % of 3 layers"])'
    with caplog.at_level("INFO"):
        carry_out(started(script, 'say("done")'))
    assert ("senseapp.measure", 30, "100 % of 3 layers") in caplog.record_tuples


def test_a_lost_cluster_is_told_by_its_name(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started("sys.exit(1)")
    monkeypatch.setattr(processes, "JobProcess", lambda: process)
    with pytest.raises(ClusterFailed, match=r"connection to the cluster was lost\. What was measured is kept.*alone"):
        carry_out_on_cluster(TASK, context_of(), device="cpu", address="auto")


def test_an_unreachable_cluster_is_told_by_the_real_process() -> None:
    with pytest.raises(ClusterFailed, match=r"No Ray cluster answers at 127\.0\.0\.1:1"):
        carry_out_on_cluster(TASK, context_of(), device="cpu", address="127.0.0.1:1")


def test_estimates_alone_need_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "127.0.0.1:1")
    assert cluster_for(RunSpec()) == "127.0.0.1:1"
    assert cluster_for(RunSpec(sensitivity=SensitivitySpec(mode="quick", num_samples=8))) == ""


@pytest.mark.parametrize(
    "task",
    [
        TASK,
        Verification(run_id="r", schedule=Schedule(model="demo", method="manual", entries=()), repair=False),
        Verification(
            run_id="r", schedule=Schedule(model="demo", method="manual", entries=()), other=QuantizationConfig()
        ),
        HistogramTask(run_id="r", spec=HistogramSpec(layer="stem", num_images=8)),
        StrongestSearch(
            run_id="r",
            drop=DropLimit(
                kind="params",
                allowed_drop=0.01,
                metric="top1",
                repair=True,
                limits=Limits(max_level=0.8, layers={"stem": (None, 0.5)}, fixed={"head": 0.0}),
            ),
        ),
        CheckTask(run_id="0" * 32, spec=CheckSpec(reference=ModelSpec(), candidate=ModelSpec())),
    ],
    ids=["run", "proof", "proof of two runs", "histogram", "search", "check"],
)
def test_a_task_arrives_as_it_was_sent(task: RunTask) -> None:
    assert decode_task(json.loads(json.dumps(encode_task(task), allow_nan=False))) == task


@pytest.mark.slow
def test_a_question_ends_its_process_in_time_though_the_app_is_gone() -> None:
    program = """
from senseapp.server.process import child
def endless(question):
    nested = ()
    for _ in range(60):
        nested = (nested, nested)
    return hash(nested)  # in C, for years, with no other thread let in
child.answer_here, child._GRACE_SECONDS = endless, 0
class Talk:
    say = print
child._answer(Talk, {"question": None, "seconds": 0.5, "most_bytes": 1e9})
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGALRM
