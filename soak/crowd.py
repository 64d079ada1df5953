"""Many people watch a run and click while it measures: how long a click takes, and how much the run is slowed.

Run as ``python -m soak.crowd [VISITORS]``; exits with 0 if the 95th percentile of a click is under a second, no
page broke, and the run took at most 15 % longer than without them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from senseapp import descriptions
from soak.served import Served, served
from soak.visitor import Visitor

LOAD_SECONDS = 300.0  # of torch, on a machine that others use
RUN_SECONDS = 900.0
Pause = tuple[float, float]
MORE_LEVELS = "5, 15, 35, 45, 55, 65, 85"  # added to 25, 50, 75
SLOWEST_CLICK_SECONDS = 1.0
MOST_SLOWED = 1.15
PLACES = ("results", "runs", "guide", "system", "results", "compare")


@dataclass(frozen=True, kw_only=True)
class CrowdReport:
    """What was measured.

    Attributes:
        clicks: seconds from each click to the end of its answer.
        looks: fragments that the watching pages asked for.
        alone_seconds, watched_seconds: of the run, without and with the crowd.
    """

    clicks: tuple[float, ...]
    looks: int
    alone_seconds: float
    watched_seconds: float

    @property
    def click_95(self) -> float:
        """The 95th percentile of a click, in seconds."""
        return statistics.quantiles(self.clicks, n=20)[-1]

    @property
    def slowed(self) -> float:
        """How many times longer the run took with the crowd."""
        return self.watched_seconds / self.alone_seconds


async def start_run(visitor: Visitor, *, images: int, seed: int, more_levels: str = "") -> str:
    """Start a run of the demo in zeros on some images and return its id; another seed is another run."""
    await visitor.go("")
    await visitor.wait_until(lambda page: " layers × " in page.text(), seconds=LOAD_SECONDS)
    await visitor.set("radio", "What is done to a layer", string_value=f"**{descriptions.get('sparsity').label}**")
    await visitor.set("number_input", "Images to measure on", double_value=images)
    await visitor.set("number_input", "Seed", double_value=seed)
    if more_levels:
        await visitor.set("text_input", "Other levels", string_value=more_levels)
    await visitor.click("Run")
    await visitor.wait_until(lambda page: page.page == "results" and "run" in page.query)
    return visitor.query["run"]


async def time_run(visitor: Visitor) -> float:
    """Wait until the run of this page is done, and return the seconds from its first moment."""
    started = time.perf_counter()
    await visitor.wait_until(lambda page: page.has_finished, seconds=RUN_SECONDS)
    return time.perf_counter() - started


async def watch(visitor: Visitor, run_id: str, done: asyncio.Event, chance: random.Random, pause: Pause) -> list[float]:
    """Watch a run and click now and then until it is done; return the seconds that each click took."""
    await asyncio.sleep(chance.uniform(0, pause[1]))  # nobody comes at the very same moment
    clicks = [await visitor.go("results", f"run={run_id}")]
    while not done.is_set():
        await asyncio.sleep(chance.uniform(*pause))
        place = chance.choice(PLACES)
        clicks.append(await visitor.go(place, f"run={run_id}" if place == "results" else ""))
    return clicks


async def crowd(
    server: Served, visitors: int, *, images: int, more_levels: str = MORE_LEVELS, pause: Pause = (1.0, 5.0)
) -> CrowdReport:
    """Measure a run alone, with the crowd, and alone again: the machine may do something else meanwhile.

    Each visitor clicks after a random ``pause`` between these seconds.
    """
    chance, done = random.Random(0), asyncio.Event()
    async with AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(Visitor(server.url, "guide")) for _ in range(visitors)]
        await start_run(first, images=16, seed=99)  # torch is loaded, and the pages have been made once
        await time_run(first)
        before = await _measured_alone(server, first, images, 1, more_levels)
        run_id = await start_run(first, images=images, seed=2, more_levels=more_levels)
        watching = [asyncio.create_task(watch(one, run_id, done, chance, pause)) for one in others]
        await time_run(first)
        done.set()
        clicks = [seconds for found in await asyncio.gather(*watching) for seconds in found]
        looks = sum(one.fragment_runs for one in (first, *others))
        watched = run_seconds(server, run_id)
        after = await _measured_alone(server, first, images, 3, more_levels)
    alone = (before + after) / 2
    return CrowdReport(clicks=tuple(clicks), looks=looks, alone_seconds=alone, watched_seconds=watched)


async def _measured_alone(server: Served, visitor: Visitor, images: int, seed: int, more_levels: str) -> float:
    run_id = await start_run(visitor, images=images, seed=seed, more_levels=more_levels)
    await visitor.go("guide")
    while not (server.home / "runs" / run_id / "result.json").is_file():
        await asyncio.sleep(0.2)
    return run_seconds(server, run_id)


def run_seconds(server: Served, run_id: str) -> float:
    """Return how long a run took, as it says itself."""
    told = json.loads((server.home / "runs" / run_id / "result.json").read_text())
    return float(told["data"]["seconds"])


def main() -> int:
    """Measure with the settings of the command line, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("visitors", type=int, nargs="?", default=20)
    parser.add_argument("--images", type=int, default=600)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), OMP_NUM_THREADS="1") as server:
        report = asyncio.run(crowd(server, chosen.visitors, images=chosen.images))
    sys.stdout.write(
        f"{chosen.visitors} visitors, {report.looks} looks, {len(report.clicks)} clicks: median "
        f"{statistics.median(report.clicks):.2f} s, 95th percentile {report.click_95:.2f} s, "
        f"longest {max(report.clicks):.2f} s\n"
        f"the run took {report.alone_seconds:.1f} s alone and {report.watched_seconds:.1f} s with them: "
        f"{100 * (report.slowed - 1):+.0f} % (load of the machine: {os.getloadavg()[0]:.1f})\n"
    )
    return 0 if report.click_95 < SLOWEST_CLICK_SECONDS and report.slowed <= MOST_SLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
