"""The app's end of the conversation with a process that works for it, whatever becomes of that process."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from senseapp.errors import ClusterFailed, InvalidDataset, ProcessLost, SenseError
from senseapp.jobs import JobCancelled
from senseapp.process_settings import measuring_environment
from senseapp.results import Schedule, SensitivityResult
from senseapp.service import DropLimit, open_engine_session
from senseapp.service.histogram_task import HistogramTask
from senseapp.service.job_process import JobProcess, JobProcesses, ProcessSession, cluster_lost
from senseapp.service.job_process import process as process_module
from senseapp.service.job_process.process import process_lost
from senseapp.service.job_process.tasks import decode_task, encode_task
from senseapp.service.run_task import RunTask
from senseapp.service.strongest_search import StrongestSearch
from senseapp.service.verification import Verification
from senseapp.spec import QuantizationConfig, RunSpec, SensitivitySpec, dumps
from senseapp.spec.histogram import HistogramSpec
from senseapp.spec.limits import Limits
from tests.fake_session import a_measurement, a_result

PRELUDE = """
import json, sys, time
def say(kind, body=None):
    print(json.dumps([kind, body]), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
kind, request = hear()
"""
OPENED = """
say("opened", {"head": HEAD, "targets": 8, "predicted_seconds": 5.0, "reusable": []})
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., JobProcess]]:
    """Start a process that runs some lines instead of the real ones; whatever is left of them ends after the test."""
    monkeypatch.setattr(process_module, "_ASK_SECONDS", 0.05)
    monkeypatch.setattr(process_module, "_LEAVE_SECONDS", 0.5)
    found: list[JobProcess] = []

    def start(*script: str, **options: Any) -> JobProcess:
        head = json.dumps(json.loads(dumps(a_result())))
        code = "\n".join((PRELUDE, f"HEAD = json.loads({head!r})", *map(textwrap.dedent, script)))

        def popen(errors: Any) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

        monkeypatch.setattr(process_module, "_started", popen)
        found.append(JobProcess(**options))
        return found[-1]

    yield start
    for process in found:
        process.close()


def session_in(
    process: JobProcess,
    *,
    progress: Callable[[str], None] = lambda sentence: None,
    find_alike: Callable[[str], SensitivityResult | None] = lambda key: None,
    **options: Any,
) -> ProcessSession:
    try:
        return ProcessSession(
            process,
            RunSpec(),
            address="auto",
            data_roots=(Path("/data"),),
            progress=progress,
            earlier=None,
            find_alike=find_alike,
            **options,
        )
    except BaseException:
        assert "leave" in options or not process.alive  # nothing is left behind
        raise


def test_what_the_process_finds_is_what_the_session_yields(started: Callable[..., JobProcess]) -> None:
    told: list[str] = []
    found = dumps(a_measurement("stem", 0.25))
    process = started(
        """
        assert request["address"] == "auto" and request["data_roots"] == ["/data"]
        say("phase", "Loading the model")
        """,
        OPENED,
        f"""
        while True:
            kind, body = hear()
            if kind == "result":
                say("result", HEAD)
            else:
                assert kind == "estimates" or len(body) == 1
                say("phase", "Measuring on 2 workers")
                say("found", json.loads({found!r}))
                assert hear()[0] == "taken"
                say("end")
        """,
    )
    session = session_in(process, progress=told.append)
    assert session.targets == 8
    assert session.predicted_seconds() == 5.0
    assert session.profile == a_result().profile
    assert session.reusable() == ()
    assert list(session.estimates()) == [a_measurement("stem", 0.25)]
    assert list(session.measure([a_measurement()])) == [a_measurement("stem", 0.25)]
    assert session.result(()) == a_result()
    assert {"Loading the model", "Measuring on 2 workers"} <= set(told)
    session.close()
    assert not process.alive


def test_an_earlier_run_is_looked_for_by_the_app(started: Callable[..., JobProcess]) -> None:
    asked: list[str] = []

    def find(key: str) -> SensitivityResult:
        asked.append(key)
        return a_result()

    session_in(started('say("find", "abc")\nassert hear()[1] == HEAD', OPENED), find_alike=find).close()
    assert asked == ["abc"]


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
def test_a_session_that_cannot_be_opened_says_why(
    script: str, kind: type[Exception], words: str, started: Callable[..., JobProcess]
) -> None:
    with pytest.raises(kind, match=words):
        session_in(started(script, lost=cluster_lost))


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
    found = dumps(a_measurement())
    process = started(OPENED, f"hear()\nsay('found', json.loads({found!r}))\nhear()\n{ending}", lost=lost)
    session = session_in(process)
    run = session.measure(())
    assert next(run) == a_measurement()
    with pytest.raises(SenseError, match=words):
        next(run)
    for _ in range(2):  # even where the question could still be written
        with pytest.raises(SenseError, match="What was measured is kept"):
            process.hear("result", progress=lambda sentence: None)
    with pytest.raises(SenseError, match="What was measured is kept"):
        session.result(())
    session.close()


def test_a_cancel_ends_a_process_that_is_silent_and_deaf(started: Callable[..., JobProcess]) -> None:
    heard: list[str] = []

    def cancel_at_third(sentence: str) -> None:
        heard.append(sentence)
        if len(heard) == 3:
            raise JobCancelled

    with pytest.raises(JobCancelled):
        session_in(started("time.sleep(600)"), progress=cancel_at_third)
    assert heard == ["", "", ""]  # there was nothing new to say


def test_what_the_process_logs_is_logged_here(
    started: Callable[..., JobProcess], caplog: pytest.LogCaptureFixture
) -> None:
    script = 'say("log", ["senseapp.sensitivity", 30, "100 % of 3 layers"])'
    with caplog.at_level("INFO"):
        session_in(started(script, OPENED)).close()
    assert ("senseapp.sensitivity", 30, "100 % of 3 layers") in caplog.record_tuples


SERVES_MANY = """
while True:
    if kind == "open":
        say("opened", {"head": HEAD, "targets": 8, "predicted_seconds": 5.0, "reusable": []})
    elif kind == "task":
        say("done")
    kind, request = hear()
"""


def open_in(pool: JobProcesses) -> ProcessSession:
    return pool.open(
        RunSpec(), data_roots=(), progress=lambda sentence: None, earlier=None, find_alike=lambda key: None
    )


def test_a_process_is_used_again_and_again(started: Callable[..., JobProcess]) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    pool.warm_up()
    pool.warm_up()
    (first,) = pool.pids()
    for _ in range(3):
        open_in(pool).close()
        assert pool.pids() == (first,)
    pool.close()
    assert pool.pids() == ()


def test_no_process_does_two_things_at_once_and_no_more_are_kept_than_asked_for(
    started: Callable[..., JobProcess],
) -> None:
    pool = JobProcesses(1, start=lambda: started(SERVES_MANY))
    sessions = [open_in(pool), open_in(pool)]
    assert len(set(pool.pids())) == 2
    for session in sessions:
        session.close()
    assert len(pool.pids()) == 1
    pool.close()


@pytest.mark.parametrize("leave_early", [True, False], ids=["in the middle of something", "ended meanwhile"])
def test_a_process_that_cannot_go_on_is_replaced(started: Callable[..., JobProcess], leave_early: bool) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    session = open_in(pool)
    (first,) = pool.pids()
    if leave_early:
        session._process.ask("estimates")
        session._answered = False
        session.close()
    else:
        session.close()
        os.kill(first, signal.SIGKILL)
        session._process._process.wait()
    open_in(pool).close()
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
        open_in(JobProcesses(start=start))


def test_a_closed_pool_keeps_nothing(started: Callable[..., JobProcess]) -> None:
    pool = JobProcesses(start=lambda: started(SERVES_MANY))
    session = open_in(pool)
    pool.close()
    session.close()
    pool.warm_up()
    assert pool.pids() == ()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to do with freed memory")
def test_what_work_has_freed_is_kept_for_the_next_and_given_back_when_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = 300 << 20
    script = f"""
        from senseapp.service.job_process import child
        child._IDLE_SECONDS = 1.5
        child._ANSWERS = {{"work": lambda talk, body: (len(b"x" * {block}), talk.say("done"))}}
        child.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    monkeypatch.setattr(
        process_module,
        "_started",
        lambda errors: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=measuring_environment()
        ),
    )
    with closing(JobProcess()) as process:
        memory = psutil.Process(process.pid)
        for _ in range(2):
            process.ask("work")
            process.hear("done", progress=lambda sentence: None)
            assert memory.memory_info().rss > block
        deadline = time.monotonic() + 60
        while memory.memory_info().rss > block and time.monotonic() < deadline:
            time.sleep(0.05)
        assert memory.memory_info().rss < block
        process.ask("work")  # it is still at hand
        process.hear("done", progress=lambda sentence: None)


def test_an_unreachable_cluster_is_told_by_the_real_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterFailed, match=r"No Ray cluster answers at 127\.0\.0\.1:1"):
        open_engine_session(RunSpec(), data_roots=(), progress=lambda sentence: None, earlier=None)


def test_estimates_alone_need_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "127.0.0.1:1")
    spec = RunSpec(sensitivity=SensitivitySpec(mode="quick", num_samples=8))
    session = open_engine_session(spec, data_roots=(), progress=lambda sentence: None, earlier=None)
    assert session.targets == 0
    session.close()


@pytest.mark.parametrize(
    "task",
    [
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
    ids=["proof", "proof of two runs", "histogram", "search"],
)
def test_a_task_arrives_as_it_was_sent(task: RunTask) -> None:
    sent = json.dumps(encode_task(task), allow_nan=False)
    assert decode_task(json.loads(sent)) == task
