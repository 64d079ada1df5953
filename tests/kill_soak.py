"""Kills a server that measures, again and again at random moments, and checks that nothing is lost.

Run as ``python -m tests.kill_soak FOLDER KILLS``; exits with 0 if the run that was killed equals one that was not.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

from senseapp.results import RunState, SensitivityResult
from senseapp.service import Backend, Service
from senseapp.spec import RunSpec, SensitivitySpec
from tests.fake_session import FakeEngine, fake_calibration

SPEC = RunSpec(sensitivity=SensitivitySpec(levels=tuple(number / 50 for number in range(1, 50))))
SECONDS_PER_MEASUREMENT = 0.002


def serve(home: Path) -> Service:
    engine = FakeEngine()
    engine.before_yield = lambda number: time.sleep(SECONDS_PER_MEASUREMENT)
    return Service(Backend(home, open_session=engine, data_roots=(), calibrate=fake_calibration, workers=0))


def work_until_killed(home: Path, run_id: str) -> None:
    service = serve(home)
    service.resume(run_id)
    service._backend.runner.run_next()


def killed_after(seconds: float, home: Path, run_id: str) -> bool:
    """Start a server process, kill it after a while, and tell whether it was still at work."""
    child = os.fork()
    if child == 0:
        work_until_killed(home, run_id)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def uninterrupted(home: Path) -> SensitivityResult | None:
    service = serve(home)
    run_id = service.start(SPEC)
    service._backend.runner.run_next()
    return service.result(run_id)


def main(folder: Path, kills: int) -> None:
    random.seed(0)
    expected = uninterrupted(folder / "whole")
    home = folder / "killed"
    service = serve(home)
    run_id = service.start(SPEC)
    idle, done = 0, 0
    for _ in range(kills):
        while not killed_after(random.uniform(0.05, 0.4), home, run_id):
            service.delete(run_id)
            run_id, done = service.start(SPEC), 0
        state = serve(home).run(run_id).state
        assert state is RunState.INTERRUPTED, state
        now = service._backend.store.folder(run_id).measurements.count()
        assert now >= done, f"{done - now} measurements were lost"
        idle, done = idle + (now == done), now
        assert sqlite3.connect(home / "senseapp.sqlite3").execute("PRAGMA integrity_check").fetchone() == ("ok",)
    work_until_killed(home, run_id)
    found = serve(home).result(run_id)
    assert found is not None
    assert expected is not None
    assert replace(found, seconds=0.0) == replace(expected, seconds=0.0)
    sys.stdout.write(f"{kills} kills, {idle} of them before anything new was measured; the result is the same\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
