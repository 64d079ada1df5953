"""The app's end of the conversation with a process that works for it, whatever becomes of that process."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.codec import dumps
from senseapp.core.errors import ClusterFailed, InvalidDataset, ProcessLost, SenseError
from senseapp.core.process import measuring_environment
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult
from senseapp.records.schedule import Limits, Schedule
from senseapp.records.spec import HistogramSpec, RunSpec, SensitivitySpec
from senseapp.server.execution import Measurement, cluster_for
from senseapp.server.job_progress import JobCancelled
from senseapp.server.layer_tasks import HistogramTask
from senseapp.server.model_cards import identify_checkpoint
from senseapp.server.process import pool as pools
from senseapp.server.process import processes
from senseapp.server.process.pool import JobProcesses
from senseapp.server.process.processes import (
    JobProcess,
    carry_out_in,
    carry_out_on_cluster,
    cluster_lost,
    process_lost,
)
from senseapp.server.process.protocol import AppObserver, Line, decode_task, encode_task
from senseapp.server.process.requester import WorkerRequest
from senseapp.server.schedule_tasks import DropLimit, StrongestSearch, Verification
from senseapp.server.session import EarlierRuns
from senseapp.server.tasks import RunTask, TaskContext
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
    monkeypatch.setattr(pools, "CANCEL_SECONDS", 0.05)
    monkeypatch.setattr(processes, "_LEAVE_SECONDS", 0.5)
    found: list[JobProcess] = []

    def start(*script: str, **options: Any) -> JobProcess:
        head = json.dumps(json.loads(dumps(a_result())))
        code = "\n".join((PRELUDE, f"HEAD = json.loads({head!r})", *map(textwrap.dedent, script)))

        def popen(errors: Any, temporary: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

        monkeypatch.setattr(processes, "_started", popen)
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

    def estimated(self, estimate: LayerMeasurement) -> None:
        self.told.append(("estimated", estimate))

    def measured(self, measurement: LayerMeasurement) -> None:
        self.told.append(("measured", measurement))


class Alike(EarlierRuns):
    """Knows one run for every key."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find(self, content_key: str) -> RunResult:
        self.asked.append(content_key)
        return a_result()

    def taken(self, count: int, total: int) -> Reused:
        return Reused(title="Monday", taken=count, total=total)


TASK = Measurement(run_id="r", spec=RunSpec())


def context_of(observer: Observer | None = None, earlier_runs: EarlierRuns | None = None) -> TaskContext:
    return TaskContext(
        folder=RunFolder(Path("/runs/r")),
        observer=observer or Observer(),
        data_roots=(Path("/data"),),
        earlier_runs=earlier_runs or EarlierRuns(),
    )


def carry_out(process: JobProcess, observer: Observer | None = None, earlier_runs: EarlierRuns | None = None) -> None:
    carry_out_in(process, TASK, context_of(observer, earlier_runs), device="cpu", address="auto")


def test_what_a_process_tells_reaches_the_observer(started: Callable[..., JobProcess]) -> None:
    observer = Observer()
    found = dumps(a_measurement("stem", 0.25))
    process = started(
        f"""
        assert kind == "task" and request["task"]["type"].endswith(":Measurement")
        assert (request["address"], request["device"], request["job_mb"]) == ("auto", "cpu", 0)
        assert (request["folder"], request["data_roots"]) == ("/runs/r", ["/data"])
        say("phase", "Loading the model")
        say("opened", [HEAD, {{"done": 1, "total": 8, "predicted_seconds": 5.0}}])
        say("estimated", json.loads({found!r}))
        say("measured", json.loads({found!r}))
        say("done")
        """
    )
    carry_out(process, observer)
    assert observer.told == [
        "Loading the model",
        (a_result(), {"done": 1, "total": 8, "predicted_seconds": 5.0}),
        ("estimated", a_measurement("stem", 0.25)),
        ("measured", a_measurement("stem", 0.25)),
    ]


def test_an_earlier_run_is_looked_for_by_the_app(started: Callable[..., JobProcess]) -> None:
    script = """
        say("find", "abc")
        assert hear() == ["answer", HEAD]
        say("taken", [3, 8])
        assert hear()[1]["data"] == {"title": "Monday", "taken": 3, "total": 8}
        say("done")
    """
    known = Alike()
    carry_out(started(script), earlier_runs=known)
    assert known.asked == ["abc"]


def test_the_process_tells_what_the_task_tells_it() -> None:
    """The two ends of the conversation fit together."""
    told, said, known = Observer(), [], Alike()
    answers: list[Any] = []

    class Ear:
        def send(self, kind: str, body: Any) -> None:
            answers.append(body)

    def say(kind: str, body: Any) -> None:
        said.append(kind)
        if kind == "phase":
            told.phase(body)
        else:
            processes._pass_on(Line(kind=kind, body=json.loads(json.dumps(body))), Ear(), told, known)  # type: ignore[arg-type]

    app = AppObserver(say, lambda: answers.pop())
    app.phase("Loading")
    app.phase("")
    app.opened(a_result(), done=0, total=8, predicted_seconds=1.5)
    app.estimated(a_measurement("stem", 0.25))
    app.measured(a_measurement("head", 0.5))
    assert app.find("abc") == a_result()
    assert app.taken(3, 8) == Reused(title="Monday", taken=3, total=8)
    assert said == ["phase", "opened", "estimated", "measured", "find", "taken"]
    assert told.told == [
        "Loading",
        (a_result(), {"done": 0, "total": 8, "predicted_seconds": 1.5}),
        ("estimated", a_measurement("stem", 0.25)),
        ("measured", a_measurement("head", 0.5)),
    ]


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("sys.exit(1)", ClusterFailed, "connection to the cluster was lost. What was measured is kept"),
        ('say("refused", ["InvalidDataset", "There is no image."])', InvalidDataset, "There is no image."),
        ('say("refused", ["InfeasibleBudget", "Too little."])', Exception, "Too little."),
        ('say("crashed", "Traceback: KeyError")', RuntimeError, "KeyError"),
        ('sys.stdout.write("[\\\\"opened")', ClusterFailed, "connection to the cluster was lost"),
    ],
    ids=["ended", "refused", "other error", "crashed", "torn line"],
)
def test_a_task_that_cannot_be_done_says_why(
    script: str, kind: type[Exception], words: str, started: Callable[..., JobProcess]
) -> None:
    with pytest.raises(kind, match=words):
        carry_out(started(script, lost=cluster_lost))


@pytest.mark.parametrize(
    ("ending", "lost", "words"),
    [
        ("sys.exit(1)", cluster_lost, "go on on this machine alone"),
        ("sys.exit(4)", process_lost, r"ended unexpectedly \(status 4\)"),
        ("import os; os.kill(os.getpid(), 9)", process_lost, "was killed, most often because memory ran out"),
    ],
    ids=["cluster", "crash", "killed"],
)
def test_a_process_that_dies_in_mid_run_ends_the_run_with_a_sentence(
    ending: str, lost: Callable[[int], SenseError], words: str, started: Callable[..., JobProcess]
) -> None:
    observer = Observer()
    process = started(f"say('measured', json.loads({dumps(a_measurement())!r}))\n{ending}", lost=lost)
    with pytest.raises(SenseError, match=words):
        carry_out(process, observer)
    assert observer.told == [("measured", a_measurement())]
    for _ in range(2):  # even where the request could still be written
        with pytest.raises(SenseError, match="What was measured is kept"):
            process.receive("done", progress=lambda sentence: None)
        with pytest.raises(SenseError, match="What was measured is kept"):
            carry_out(process)


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


SERVES_MANY = """
while True:
    if kind == "task":
        say("phase", "at work")
        say("done")
    kind, request = hear()
"""


def work_in(pool: JobProcesses, stop: Callable[[str], None] = lambda sentence: None) -> None:
    pool.carry_out(TASK, context_of(Observer(stop)), device="cpu")


def test_a_process_is_used_again_and_again(started: Callable[..., JobProcess]) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    pool.warm_up()
    pool.warm_up()
    (first,) = pool.pids()
    for _ in range(3):
        work_in(pool)
        assert pool.pids() == (first,)
    pool.close()
    assert pool.pids() == ()


def test_no_process_does_two_things_at_once_and_no_more_are_kept_than_asked_for(
    started: Callable[..., JobProcess],
) -> None:
    pool = JobProcesses(1, start=lambda: started(SERVES_MANY))
    counted: list[int] = []

    def while_at_work(sentence: str) -> None:
        if sentence and not counted:
            counted.append(0)
            work_in(pool, lambda inner: counted.append(len(set(pool.pids()))) if inner else None)

    work_in(pool, while_at_work)
    assert counted == [0, 2]
    assert len(pool.pids()) == 1
    pool.close()


QUESTION = WorkerRequest(call=partial(identify_checkpoint, "a.pth"))
SOLVE = replace(QUESTION, needs_engine=False)


@pytest.mark.parametrize("at_work", [False, True], ids=["idle", "at work"])
def test_a_process_that_has_answered_many_questions_is_asked_until_its_successor_is_warm(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    # It used to end at once: then whoever asked next waited for torch to load.
    made: list[JobProcess] = []
    asked: list[int] = []

    def start() -> JobProcess:
        made.append(started(SERVES_MANY))
        return made[-1]

    def answer_in(process: JobProcess, question: Any, **_: Any) -> None:
        asked.append(made.index(process))
        if at_work and len(asked) == 5:
            made[1].warm.set()

    monkeypatch.setattr(pools, "_MOST_ANSWERS", 3)
    monkeypatch.setattr(pools, "answer_in", answer_in)
    pool = JobProcesses(1, start=start)
    pool.warm_up()
    made[0].warm.set()
    for _ in range(5):
        pool.answer(QUESTION)
    assert asked == [0] * 5
    assert len(made) == 2
    made[1].warm.set()
    pool.answer(QUESTION)
    assert asked[-1] == 1
    made[0]._process.wait(5)
    assert pool.pids() == (made[1].pid,)
    pool.close()


def test_a_process_that_is_to_end_takes_no_place_from_those_that_stay(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[JobProcess] = []

    def start() -> JobProcess:
        made.append(started(SERVES_MANY))
        return made[-1]

    monkeypatch.setattr(pools, "_MOST_ANSWERS", 1)
    monkeypatch.setattr(pools, "answer_in", lambda process, question, **_: None)
    pool = JobProcesses(2, start=start)
    pool.warm_up()
    pool.answer(QUESTION)
    assert len(made) == 2
    pool.warm_up()  # two stay: the successor, and this one
    pool.warm_up()
    assert len(pool.pids()) == len(made) == 3
    for process in made[1:]:
        process.warm.set()
    pool.answer(QUESTION)
    made[0]._process.wait(5)
    pool.close()
    assert not any(process.alive for process in made)


@pytest.mark.parametrize("long", [False, True], ids=["soon answered", "long"])
def test_work_waits_for_a_process_that_is_asked_something_rather_than_start_another(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def answer_in(process: JobProcess, question: Any, **_: Any) -> None:
        asked.set()
        answered.wait(30)

    monkeypatch.setattr(pools, "answer_in", answer_in)
    monkeypatch.setattr(pools, "_ANSWER_SECONDS", 0.0)
    pool = JobProcesses(1, start=lambda: started(SERVES_MANY))
    asking = threading.Thread(target=pool.answer, args=(QUESTION,))
    asking.start()
    assert asked.wait(30)
    (first,) = pool.pids()
    looked: list[str] = []

    def look(sentence: str) -> None:
        looked.append(sentence)
        if len(looked) == 3:  # so long it has waited, while the engine was being loaded
            assert looked == ["", "", ""]
            if long:
                next(iter(pool._answering)).warm.set()
            else:
                answered.set()
        for process in pool._idle if len(looked) > 3 else ():
            process.warm.set()

    work_in(pool, look)
    assert looked[-1] == "at work"
    assert (pool.pids() == (first,)) is not long
    answered.set()
    asking.join()
    pool.close()


@pytest.mark.parametrize("long", [False, True], ids=["soon answered", "long"])
def test_a_question_is_answered_by_the_process_that_is_ready_first(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    made: list[JobProcess] = []
    answers: list[tuple[int, bool]] = []
    first_is_answering, first_answers = threading.Event(), threading.Event()

    def start() -> JobProcess:
        made.append(started(SERVES_MANY))
        return made[-1]

    def answer_in(process: JobProcess, question: Any, **_: Any) -> None:
        answers.append((made.index(process), process.warm.is_set()))
        if len(answers) == 1:
            first_is_answering.set()
            assert first_answers.wait(30)

    monkeypatch.setattr(pools, "answer_in", answer_in)
    monkeypatch.setattr(pools, "_ANSWER_SECONDS", 0.0)
    pool = JobProcesses(1, start=start)
    pool.warm_up()
    made[0].warm.set()
    asking = [threading.Thread(target=pool.answer, args=(QUESTION,)) for _ in range(2)]
    asking[0].start()
    assert first_is_answering.wait(30)
    asking[1].start()
    while len(made) < 2:  # one more is started, and loads the engine
        asking[1].join(0.01)
    assert len(answers) == 1
    if long:
        made[1].warm.set()
        asking[1].join(30)
    first_answers.set()
    for thread in asking:
        thread.join(30)
    assert answers == [(0, True), (int(long), True)]
    pool.close()


def test_a_request_without_the_engine_waits_for_no_process_that_loads_it(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[JobProcess] = []
    answers: list[int] = []

    def start() -> JobProcess:
        made.append(started(SERVES_MANY))
        return made[-1]

    monkeypatch.setattr(pools, "answer_in", lambda process, question, **_: answers.append(made.index(process)))
    pool = JobProcesses(1, start=start)
    pool.warm_up()
    pool.answer(SOLVE)  # the first loads the engine
    assert (answers, len(pool.pids())) == ([1], 1)
    made[0].warm.set()
    pool.answer(SOLVE)
    assert answers == [1, 0]
    pool.close()


def test_a_process_that_answered_without_the_engine_and_stays_loads_it(
    started: Callable[..., JobProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started("""
        while True:
            say("answer" if kind == "question" else "phase", request)
            kind, request = hear()
    """)
    warmed: list[str] = []
    send = process.send
    monkeypatch.setattr(process, "send", lambda kind, body=None: warmed.append(kind) or send(kind, body))
    monkeypatch.setattr(WorkerRequest, "decoded", lambda request, body: "solved")
    pool = JobProcesses(1, start=lambda: process)
    assert pool.answer(SOLVE) == "solved"
    assert warmed == ["question", "warm"]
    pool.close()


@pytest.mark.parametrize("cancelled", [True, False], ids=["in the middle of something", "ended meanwhile"])
def test_a_process_that_cannot_go_on_is_replaced(started: Callable[..., JobProcess], cancelled: bool) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    work_in(pool)
    (first,) = pool.pids()
    if cancelled:

        def cancel(sentence: str) -> None:
            raise JobCancelled

        with pytest.raises(JobCancelled):
            work_in(pool, cancel)
    else:
        os.kill(first, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first)], timeout=5)
    work_in(pool)
    (second,) = pool.pids()
    assert second != first
    pool.close()


def test_what_ended_the_work_is_told_even_where_no_other_process_can_be_started(
    started: Callable[..., JobProcess],
) -> None:
    processes = iter([started("sys.exit(4)")])

    def start() -> JobProcess:
        try:
            return next(processes)
        except StopIteration:
            raise OSError("cannot allocate memory") from None

    with pytest.raises(ProcessLost, match="ended unexpectedly"):
        work_in(JobProcesses(start=start))


def test_a_closed_pool_keeps_nothing(started: Callable[..., JobProcess]) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    with suppress(ProcessLost):  # it may have answered before it was ended
        work_in(pool, lambda sentence: pool.close() if sentence else None)
    assert pool.pids() == ()
    pool.warm_up()
    assert pool.pids() == ()


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_what_work_has_freed_is_kept_for_the_next_and_given_back_when_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = 300 << 20
    script = f"""
        from senseapp.server.process import child
        child._IDLE_SECONDS = 1.5
        child._ANSWERS = {{"work": lambda talk, body: (len(b"x" * {block}), talk.say("done"))}}
        child.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    monkeypatch.setattr(
        processes,
        "_started",
        lambda errors, temporary: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=measuring_environment()
        ),
    )
    with closing(JobProcess()) as process:
        memory = psutil.Process(process.pid)
        for _ in range(2):
            process.send("work")
            process.receive("done", progress=lambda sentence: None)
            assert memory.memory_info().rss > block
        deadline = time.monotonic() + 60
        while memory.memory_info().rss > block and time.monotonic() < deadline:
            time.sleep(0.05)
        assert memory.memory_info().rss < block
        process.send("work")  # it is still at hand
        process.receive("done", progress=lambda sentence: None)


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
    ],
    ids=["run", "proof", "proof of two runs", "histogram", "search"],
)
def test_a_task_arrives_as_it_was_sent(task: RunTask) -> None:
    sent = json.dumps(encode_task(task), allow_nan=False)
    assert decode_task(json.loads(sent)) == task


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
child._answer(Talk, {"question": None, "seconds": 0.5, "job_mb": 0, "most_bytes": 1e9})
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGALRM


def test_the_speed_of_the_machine_is_not_awaited_from_a_process_that_was_never_asked_for_it(
    started: Callable[..., JobProcess],
) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    process = pool._take(lambda: None)  # for a task, whose process loads the engine without a word
    assert not process.warm.is_set()
    assert pool.machine_speed() is None
    pool.close()
