"""Quiet moments between processes: who times waits for a pause, and who works waits for the end of the timing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from senseapp.core import process as quiet_module
from senseapp.core.process import QUIET_FILE, at_work, pause, quiet

WORKER = """
import time
from senseapp.core.process import at_work, pause
with at_work():
    print("begins", flush=True)
    while True:
        print(time.monotonic(), flush=True)
        time.sleep(PACE)
        pause()
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Starts a process at work that pauses every so many seconds."""
    monkeypatch.setenv(QUIET_FILE, str(tmp_path / "quiet"))
    started = []

    def start(pace: float) -> subprocess.Popen:
        script = WORKER.replace("PACE", str(pace))
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "begins\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_who_works_does_nothing_while_something_is_timed(worker):
    process = worker(0.005)
    with at_work():
        with quiet():
            begun = time.monotonic()
            time.sleep(0.3)
            ended = time.monotonic()
        time.sleep(0.1)
    process.kill()
    moments = [float(line) for line in process.stdout]
    assert min(moments) < begun
    assert max(moments) > ended  # it goes on
    assert not [moment for moment in moments if begun < moment < ended]


@pytest.mark.slow
def test_a_timing_does_not_wait_for_ever(worker, monkeypatch, caplog):
    process = worker(60)
    monkeypatch.setattr(quiet_module, "_WAIT_SECONDS", 0.2)
    with at_work(), quiet():
        pass
    assert "beside other work" in caplog.text
    process.kill()
    process.wait()
    caplog.clear()
    with at_work(), quiet():
        pass
    assert not caplog.text  # the locks of a process that ended are free


def test_without_a_server_nothing_waits(monkeypatch):
    monkeypatch.delenv(QUIET_FILE, raising=False)
    with at_work(), quiet():
        pause()
    with quiet():
        pause()
