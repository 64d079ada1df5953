"""Kills a server that measures, again and again at random moments, and checks that nothing is lost.

Run as ``python -m soak.kills_in_measuring KILLS [--engine fake] [--short] [--folder FOLDER]``; exits with 0 if
every run that was killed on its way equals one that was not, in every measurement, and the database is whole after
each kill.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from senseapp.records.jobs import RunState
from senseapp.records.measurement import LayerMeasurement, PassSettings, RunResult
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.server.tasks import OpenSession
from tests.fake_session import FakeEngine, fake_calibration

Numbers = dict[tuple[str, float], LayerMeasurement]
_MOST_NEW = 40


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is measured.

    Attributes:
        spec: of every run.
        open_session: of the engine.
        opening: about how many seconds a run takes before its first measurement.
        prepare: called once, before any process is started.
    """

    spec: RunSpec
    open_session: OpenSession | None
    opening: float
    prepare: Callable[[], None] = lambda: None


def _slow_fake() -> FakeEngine:
    engine = FakeEngine()
    engine.before_yield = lambda number: time.sleep(0.002)
    return engine


def load_torch() -> None:
    """Load torch once, in one thread: every process killed later is a copy that has it already."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from senseapp.server.machine import load_engine

    load_engine()
    import torch

    torch.set_num_threads(1)


def _percents(*percents: float) -> tuple[float, ...]:
    return tuple(percent / 100 for percent in percents)


KINDS = {
    "fake": Kind(
        spec=RunSpec(sensitivity=SensitivitySpec(levels=_percents(*range(2, 100, 2)))),
        open_session=_slow_fake(),
        opening=0.1,
        prepare=load_torch,  # a job asks it whether there is a graphics card
    ),
    "real": Kind(
        spec=RunSpec(sensitivity=SensitivitySpec(levels=_percents(*range(5, 100, 10)), num_samples=96)),
        open_session=None,
        opening=2.0,
        prepare=load_torch,
    ),
}
_SHORT = RunSpec(sensitivity=SensitivitySpec(levels=_percents(20, 40, 60, 80), num_samples=24))


@dataclass(kw_only=True)
class Trial:
    """Counts what happened, and knows what a run that was left alone finds."""

    kind: Kind
    folder: Path
    kills: int = 0
    before_anything: int = 0
    after_the_end: int = 0
    finished: int = 0
    compared: int = 0
    _whole: dict[PassSettings, Numbers] = field(default_factory=dict)

    def server(self, home: Path) -> Service:
        """A server whose worker does nothing by itself."""
        options = {"data_roots": (), "calibrate": fake_calibration, "workers": 0}
        return Service(Backend(home, open_session=self.kind.open_session, **options))

    def work(self, home: Path, run_id: str) -> None:
        """Resume a run in this process, to its end."""
        service = self.server(home)
        service.resume(run_id)
        service._backend.runner.run_next()

    def in_a_process(self, home: Path, run_id: str) -> None:
        """Resume a run in a process of its own and let it come to its end."""
        os.waitpid(self._start(home, run_id), 0)

    def killed(self, home: Path, run_id: str) -> bool:
        """Resume a run in a process of its own and kill that at a random moment; False if it ended before.

        The moment is up to :data:`_MOST_NEW` measurements on, and a part of one; or before the first.
        """
        journal = self.server(home)._backend.store.folder(run_id).path / "measurements.jsonl"
        wanted = _lines(journal) + random.randint(0, _MOST_NEW)
        child = self._start(home, run_id)
        if wanted == _lines(journal):
            time.sleep(random.uniform(0, self.kind.opening))
        while _lines(journal) < wanted:
            if os.waitpid(child, os.WNOHANG)[0]:
                return False
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    def _start(self, home: Path, run_id: str) -> int:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.work(home, run_id)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return child

    def run(self, kills: int) -> None:
        """Kill ``kills`` times, and let the last run come to its end."""
        home = self.folder / "killed"
        run_id, done = self.server(home).start(self.kind.spec), 0
        while self.kills < kills:
            if self.killed(home, run_id):
                self.kills += 1
                done = self.check_killed(home, run_id, done)
            else:
                run_id, done = self.compare_and_start_again(home, run_id), 0
        self.in_a_process(home, run_id)
        self.compare_and_start_again(home, run_id)

    def check_killed(self, home: Path, run_id: str, before: int) -> int:
        """Start the server again and look at what is left; return how many measurements are."""
        service = self.server(home)
        state = service.run(run_id).state
        now = service._backend.store.folder(run_id).measurements.count()
        assert now >= before, f"{before - now} measurements were lost"
        if state is RunState.DONE:  # killed between its last write and its end
            self.after_the_end += 1
        else:
            assert state is RunState.INTERRUPTED, state
        self.before_anything += now == before
        with sqlite3.connect(home / "senseapp.sqlite3") as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return now

    def compare_and_start_again(self, home: Path, run_id: str) -> str:
        """Compare a finished run with one that was left alone, delete it and start the next."""
        service = self.server(home)
        found = service.result(run_id)
        assert service.run(run_id).state is RunState.DONE, service.snapshot(run_id)
        assert found is not None
        expected = self.left_alone(found)
        assert numbers(found) == expected, "the result of a killed run differs"
        self.finished += 1
        self.compared += len(expected)
        service.delete(run_id)
        return service.start(self.kind.spec)

    def left_alone(self, found: RunResult) -> Numbers:
        """Return what a run finds that was not killed and makes its passes alike: how is chosen by timing them."""
        passes = found.passes
        if passes not in self._whole:
            home = self.folder / f"whole{len(self._whole)}"
            service = self.server(home)
            run_id = service.start(self.kind.spec)
            service._backend.store.folder(run_id).save_head(found)
            self.in_a_process(home, run_id)
            whole = self.server(home).result(run_id)
            assert whole is not None
            self._whole[passes] = numbers(whole)
        return self._whole[passes]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def numbers(result: RunResult) -> Numbers:
    """Return every measurement, without the time it took."""
    return {item.key: replace(item, seconds=0.0) for item in result.measurements}


def main(arguments: list[str]) -> None:
    """Kill as often as asked, and say what happened in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--engine", choices=sorted(KINDS), default="real")
    parser.add_argument("--short", action="store_true", help="runs of fewer levels and images")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    random.seed(given.seed)
    logging.basicConfig(format="%(asctime)s %(message)s")
    kind = replace(KINDS[given.engine], spec=_SHORT) if given.short else KINDS[given.engine]
    kind.prepare()
    with tempfile.TemporaryDirectory() as made:
        trial = Trial(kind=kind, folder=given.folder or Path(made))
        trial.run(given.kills)
    sys.stdout.write(
        f"{trial.kills} kills of the {given.engine} engine, {trial.before_anything} of them before anything new was "
        f"measured and {trial.after_the_end} after the last write; {trial.finished} runs came to their end and equal "
        f"ones that were left alone in all {trial.compared} measurements; the database was whole each time\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
