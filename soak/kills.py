"""Kills a running app and its job processes at many moments, takes its disk away, and looks at what is lost.

Run as ``python -m soak.kills [--only MOMENT] [--seed 0]``: 48 kills by SIGKILL (server and job process, in
an upload, a run, a proof, a histogram, a search and while a file is half written, at four instants each) and 12 bad
conditions (``bad_conditions.py``). Prints a table; exits with 0 if nothing that was said to be kept was lost, all
came to the same end as where nobody was killed, no file and no process was left over, and pages said what was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from websockets.exceptions import ConnectionClosed

from soak.bad_conditions import CONDITIONS
from soak.crowd import start_run, time_run
from soak.kill_moments import MOMENTS, CameTooLate, InHistogram, InProof, InSearch, Moment, OfFinishedRun, Scene
from soak.killed_server import SLOW_DISK, check_home, check_leftovers, job_processes, open_pages, wait_until_gone
from soak.kills_in_measuring import load_torch
from soak.served import Served, served
from soak.visitor import Visitor
from tests.asynchronous import run_async

INSTANTS = 4
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SENSEAPP_RUNS_PER_MINUTE": "1000",
    "SENSEAPP_RECOMMEND_SECONDS": "0",  # else it follows each run, and stopping a server interrupts it
}
VICTIMS = ("server", "job process")
_TRIES = 4
_RESTING_SECONDS = 0.05  # of a processor, in half a second


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of the sixty: a line of the table, and what is tried."""

    line: str
    name: str
    carry_out: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Homes of servers that nobody killed.

    Attributes:
        begun: holds one finished run, ``run_id``.
        whole: the same, with a proof, a histogram and a search of it.
        seconds: that each of these took.
    """

    begun: Path
    whole: Path
    run_id: str
    seconds: dict[str, float]


async def _ready(server: Served, page: Visitor) -> None:
    """Wait until a job process has the engine loaded and rests, as where somebody looks at the page for a while."""
    await page.wait_until(lambda shown: " layers × " in shown.text(), seconds=120)
    while not (jobs := job_processes(server)) or await _work(jobs):
        pass


async def _work(processes: list[psutil.Process]) -> bool:
    """Return whether the processes compute within half a second."""

    def spent() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    try:
        before = spent()
        await asyncio.sleep(0.5)
        return spent() - before > _RESTING_SECONDS
    except psutil.NoSuchProcess:  # it made way for another
        return True


def make_reference(folder: Path) -> Reference:
    """Let a server measure, prove, look and search without being killed."""
    begun, whole = folder / "begun", folder / "whole"
    with served(begun, **SETTINGS) as server:
        run_id = run_async(_measured(server))
    shutil.copytree(begun, whole)
    with served(whole, **SETTINGS) as server:
        scene = Scene(victim="", number=0, home=whole, run_id=run_id, chance=random.Random(0), patience={})
        seconds = {kind.kind: run_async(_timed(server, kind(scene))) for kind in (InProof, InHistogram, InSearch)}
    return Reference(begun=begun, whole=whole, run_id=run_id, seconds=seconds)


async def _measured(server: Served) -> str:
    async with Visitor(server.url) as page:
        run_id = await start_run(page, images=256, seed=3)
        await time_run(page)
        return run_id


async def _timed(server: Served, work: OfFinishedRun) -> float:
    async with Visitor(server.url) as page:
        await _ready(server, page)
        await work.open(page)
        began = time.perf_counter()
        await page.click(work.button)
        await page.wait_until(lambda shown: bool(work.records()), seconds=240)
        return time.perf_counter() - began


def kill(moment: str, victim: str, number: int, reference: Reference, folder: Path, seed: int) -> None:
    """Kill once, start again where it was the server, go on, and look at everything."""
    for attempt in range(_TRIES):
        home = folder / f"{moment}-{victim}-{number}-{attempt}"
        shutil.copytree(reference.begun, home)
        patience = {kind: seconds * 0.6**attempt for kind, seconds in reference.seconds.items()}
        scene = Scene(
            victim=victim,
            number=number,
            home=home,
            run_id=reference.run_id,
            chance=random.Random(f"{seed} {moment} {victim} {number} {attempt}"),
            patience=patience,
        )
        try:
            if _kill_and_go_on(MOMENTS[moment](scene), reference):
                return
        finally:
            shutil.rmtree(home, ignore_errors=True)
    raise AssertionError(f"the {moment} was over {_TRIES} times before anything could be killed")


def _kill_and_go_on(moment: Moment, reference: Reference) -> bool:
    """Return False where the work was done before anything was killed."""
    scene = moment.scene
    settings = SETTINGS | (SLOW_DISK if moment.slow_disk else {})
    try:
        with served(scene.home, **settings) as server:
            run_async(_strike(server, moment))
            if scene.victim != "server":
                check_home(scene.home)
        if scene.victim == "server":
            wait_until_gone(scene.jobs)
            with served(scene.home, **SETTINGS) as server:
                run_async(_go_on(server, moment))
                check_home(scene.home)
    except CameTooLate:
        return False
    moment.check(reference.whole)
    return True


async def _strike(server: Served, moment: Moment) -> None:
    with suppress(ConnectionClosed):  # the server is gone
        async with Visitor(server.url) as page:
            await _ready(server, page)
            await moment.strike(server, page)
            if moment.scene.victim != "server":
                await moment.go_on(server, page)
                await open_pages(server, moment.scene.run_id)


async def _go_on(server: Served, moment: Moment) -> None:
    async with Visitor(server.url) as page:
        check_leftovers(server.home)
        await moment.go_on(server, page)
    await open_pages(server, moment.scene.run_id)


def cases(reference: Reference, folder: Path, seed: int) -> Iterable[Case]:
    """Yield the sixty."""
    for moment in MOMENTS:
        for victim in VICTIMS:
            for number in range(INSTANTS):
                yield Case(
                    line=f"{victim} killed in {moment}",
                    name=f"{moment}, {victim}, {number}",
                    carry_out=partial(kill, moment, victim, number, reference, folder, seed),
                )
    for line, conditions in CONDITIONS.items():
        for condition in conditions:
            home = folder / condition.__name__
            yield Case(line=line, name=condition.__name__, carry_out=partial(condition, reference.begun, home))


def main(arguments: list[str]) -> int:
    """Try all that was asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of cases")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    load_torch()
    held: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        reference = make_reference(Path(folder))
        for case in cases(reference, Path(folder), given.seed):
            if given.only not in case.name:
                continue
            tried[case.line] += 1
            began = time.perf_counter()
            try:
                case.carry_out()
                held[case.line] += 1
            except Exception as error:
                failures.append(f"{case.name}: {type(error).__name__} {error}")
                traceback.print_exc()
            sys.stderr.write(f"{case.name}: {time.perf_counter() - began:.0f} s, {len(failures)} failures so far\n")
    for line, count in tried.items():
        sys.stdout.write(f"{line:<32} {held[line]:>3} of {count}\n")
    sys.stdout.write(f"{'in all':<32} {held.total():>3} of {tried.total()}\n")
    sys.stdout.write("".join(f"FAILED {failure}\n" for failure in failures))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
