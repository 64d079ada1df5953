"""The app's end of the conversation with the process that talks to the cluster, whatever becomes of that process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from senseapp.distributed import session as session_module
from senseapp.distributed.session import ClusterSession
from senseapp.errors import ClusterFailed, InvalidDataset
from senseapp.jobs import JobCancelled
from senseapp.results import SensitivityResult
from senseapp.service import open_engine_session
from senseapp.spec import RunSpec, SensitivitySpec, dumps
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


def opened_with(
    *script: str,
    monkeypatch: pytest.MonkeyPatch,
    progress: Callable[[str], None] = lambda sentence: None,
    find_alike: Callable[[str], SensitivityResult | None] = lambda key: None,
) -> ClusterSession:
    """Open a session whose other end is ``script`` instead of one that knows Ray."""
    head = json.dumps(json.loads(dumps(a_result())))
    code = "\n".join((PRELUDE, f"HEAD = json.loads({head!r})", *map(textwrap.dedent, script)))
    processes: list[subprocess.Popen[bytes]] = []

    def started(log: Any) -> subprocess.Popen[bytes]:
        processes.append(
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        )
        return processes[0]

    monkeypatch.setattr(session_module, "_started", started)
    monkeypatch.setattr(session_module, "_ASK_SECONDS", 0.05)
    monkeypatch.setattr(session_module, "_LEAVE_SECONDS", 0.5)
    try:
        found = ClusterSession(
            RunSpec(),
            address="auto",
            data_roots=(Path("/data"),),
            progress=progress,
            earlier=None,
            find_alike=find_alike,
        )
    except BaseException:
        assert processes[0].poll() is not None  # nothing is left behind
        raise
    return found


def test_what_the_process_finds_is_what_the_session_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    found = dumps(a_measurement("stem", 0.25))
    session = opened_with(
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
                say("end")
        """,
        monkeypatch=monkeypatch,
        progress=told.append,
    )
    assert session.targets == 8
    assert session.predicted_seconds() == 5.0
    assert session.profile == a_result().profile
    assert session.reusable() == ()
    assert list(session.estimates()) == [a_measurement("stem", 0.25)]
    assert list(session.measure([a_measurement()])) == [a_measurement("stem", 0.25)]
    assert session.result(()) == a_result()
    assert {"Loading the model", "Measuring on 2 workers"} <= set(told)
    session.close()
    assert session._process.returncode is not None


def test_an_earlier_run_is_looked_for_by_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(key: str) -> SensitivityResult:
        asked.append(key)
        return a_result()

    opened_with(
        'say("find", "abc")\nassert hear()[1] == HEAD', OPENED, monkeypatch=monkeypatch, find_alike=find
    ).close()
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
    script: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=words):
        opened_with(script, monkeypatch=monkeypatch)


def test_a_process_that_dies_in_mid_run_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dumps(a_measurement())
    session = opened_with(OPENED, f"hear()\nsay('found', json.loads({found!r}))\nsys.exit(1)", monkeypatch=monkeypatch)
    run = session.measure(())
    assert next(run) == a_measurement()
    with pytest.raises(ClusterFailed, match="go on on this machine alone"):
        next(run)
    session._process.wait()
    for _ in range(2):
        with pytest.raises(ClusterFailed):
            session._hear("result")  # even where the question could still be written
    with pytest.raises(ClusterFailed):
        session.result(())
    session.close()


def test_a_cancel_ends_a_process_that_is_silent_and_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def cancel_at_third(sentence: str) -> None:
        heard.append(sentence)
        if len(heard) == 3:
            raise JobCancelled

    with pytest.raises(JobCancelled):
        opened_with("time.sleep(600)", monkeypatch=monkeypatch, progress=cancel_at_third)


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
