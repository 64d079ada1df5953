"""A working day of a team, compressed: many small runs, uploads and page loads; what the server holds before and after.

Run as ``python -m soak.day [--runs 500] [--uploads 200] [--loads 1000]``; exits with 0 if its memory grew by less
than 100 MB, no thread and no file was left open, and each session left at most its last three uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import random
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.crowd import LOAD_SECONDS, start_run, time_run
from soak.served import MB, Held, Served, served
from soak.uploads import stored
from soak.visitor import Visitor
from tests.pictures import class_files

Understood = Callable[[Visitor], bool]
MOST_GROWN_BYTES = 100 * MB
MOST_MORE_THREADS = 8
"""Workers that the web server keeps for its next requests, however many there were."""
MOST_KEPT_UPLOADS = 3
"""Files that a person took back and is offered again, until ten minutes after the session's end."""
PLACES = ("", "runs", "guide", "system", "compare", "results", "schedule")
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SENSEAPP_RUNS_PER_MINUTE": "10000",
    "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": "2",  # a real day has time to forget its visitors
}


@dataclass(frozen=True, kw_only=True)
class Day:
    """How much of each is done."""

    runs: int
    uploads: int
    loads: int


@dataclass(frozen=True, kw_only=True)
class DayReport:
    """What the server held when it was warm, and after the day."""

    before: Held
    after: Held
    seconds: float

    @property
    def grown_bytes(self) -> int:
        """Memory that it holds more."""
        return self.after.memory_bytes - self.before.memory_bytes

    @property
    def nothing_left(self) -> bool:
        """Whether no thread and no file was left over."""
        more_threads = self.after.threads - self.before.threads
        return more_threads <= MOST_MORE_THREADS and self.after.files <= self.before.files


def is_understood(page: Visitor) -> bool:
    """Return whether the page says what is in the archive."""
    return "6 images" in page.text()


async def live(
    server: Served, day: Day, *, warm: Day, settle_seconds: float = 60.0, understood: Understood = is_understood
) -> DayReport:
    """Live a little to warm up, then the day, and look at what the server holds after each.

    ``understood`` says of a page whether the server has looked into the file that was sent.
    """
    await _live(server, warm, random.Random(1), understood, first_seed=100_000)
    before = await _settled(server, settle_seconds)
    started = time.perf_counter()
    await _live(server, day, random.Random(2), understood, first_seed=0)
    return DayReport(before=before, after=await _settled(server, settle_seconds), seconds=time.perf_counter() - started)


async def _live(server: Served, day: Day, chance: random.Random, understood: Understood, *, first_seed: int) -> None:
    await asyncio.gather(
        _measure(server.url, day.runs, first_seed),
        _send(server.url, day.uploads, understood),
        _look_around(server.url, day.loads, chance),
    )


async def _measure(url: str, runs: int, first_seed: int) -> None:
    async with Visitor(url) as visitor:
        for number in range(runs):
            await start_run(visitor, images=8, seed=first_seed + number)
            await time_run(visitor)


async def _send(url: str, uploads: int, understood: Understood) -> None:
    """Send small and large archives in turn, wait until they are understood, and take them back."""
    contents = [_archive(0), _archive(6 * MB)]
    async with Visitor(url) as visitor:
        await visitor.set("button_group", "Where they come from", string_array_value=["Upload images"])
        for number in range(uploads):
            await visitor.upload("Images", "pictures.zip", contents[number % 2])
            await visitor.wait_until(understood, seconds=LOAD_SECONDS)
            await visitor.click("Choose another file")
            # A run of the page that was still going on may have ended meanwhile, which is not yet the answer.
            await visitor.wait_until(lambda page: page.has("file_uploader", "Images"))


async def _look_around(url: str, loads: int, chance: random.Random) -> None:
    for _ in range(loads):
        await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read())
        async with Visitor(url, chance.choice(PLACES)):
            pass


async def _settled(server: Served, seconds: float) -> Held:
    """Return the least that the server holds within a while: sessions end late, and threads of uploads idle out."""
    least, deadline = server.held(), time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        async with Visitor(server.url, "guide"):  # sessions are forgotten when another comes
            pass
        await asyncio.sleep(1)
        now = server.held()
        least = Held(
            memory_bytes=min(least.memory_bytes, now.memory_bytes),
            threads=min(least.threads, now.threads),
            files=min(least.files, now.files),
        )
    return least


def _archive(filler_bytes: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name, content in class_files(("0", "1"), each=3).items():
            opened.writestr(name, content)
        opened.writestr("notes.txt", os.urandom(filler_bytes))
    return file.getvalue()


def main() -> int:
    """Live the day of the command line, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--uploads", type=int, default=200)
    parser.add_argument("--loads", type=int, default=1000)
    day = Day(**vars(parser.parse_args()))
    warm = Day(runs=5, uploads=4, loads=40)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), **SETTINGS) as server:
        report = asyncio.run(live(server, day, warm=warm))
        left = len(stored(server))
    sys.stdout.write(
        f"{day.runs} runs, {day.uploads} uploads, {day.loads} page loads in {report.seconds / 60:.1f} minutes\n"
        f"before: {report.before}\nafter:  {report.after} ({report.grown_bytes / MB:+.0f} MB); {left} uploads on disk\n"
    )
    return 0 if report.grown_bytes < MOST_GROWN_BYTES and report.nothing_left and left <= 2 * MOST_KEPT_UPLOADS else 1


if __name__ == "__main__":
    sys.exit(main())
