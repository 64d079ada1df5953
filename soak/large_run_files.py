"""Run files of as many layers and levels as are taken, and the processor time of each page that shows one.

    python -m soak.large_run_files [--shapes 2000x10 1000x20 200x100]

Each shape is imported as measurements and as estimates, and served; exits with 0 if every page, and the report, took at
most 5 s of processor time of the server and the processes that work for it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from senseapp.server.backend import Backend
from senseapp.server.service import Service
from soak.downloads import get
from soak.served import Served, served
from soak.visitor import Visitor
from tests.asynchronous import run_async

MOST_CPU_SECONDS = 5.0
_SHAPES = ((2000, 10), (1000, 20), (200, 100))
_TABS = ("Curves", "Heat map", "More")
_QUIET_SECONDS, _QUIET_CPU_SECONDS = 2.0, 0.2  # a page that is open asks for its progress now and then
SOUND_RUN = Path(__file__).parents[1] / "tests" / "fixtures" / "main_2026_11" / "sparsity_quick.senserun.zip"


def large_run_file(layers: int, levels: int, *, alike: bool = True, measured: bool = False, seed: int = 0) -> bytes:
    """Return a run file of ``layers`` times ``levels`` estimates, or measurements.

    ``alike`` ones make a solver's work hardest; the intervals of measurements are compared with each other for ranks.
    """
    with zipfile.ZipFile(SOUND_RUN) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    result = json.loads(members["result.json"])
    data, chance = result["data"], random.Random(seed)
    amounts = [round((1 + level) / (1 + levels), 6) for level in range(levels)]
    layer, estimate = data["profile"]["layers"][1], data["estimates"][0]
    names = [f"blocks.{number}.conv" for number in range(layers)]
    data["profile"]["layers"] = [layer | {"name": name, "order": place} for place, name in enumerate(names)]
    data["profile"]["num_params"] = layers * layer["num_params"]
    data["profile"]["macs"] = layers * layer["macs"]
    data["spec"]["sensitivity"] |= {"levels": amounts, "layers": []}
    data["estimates"], data["measurements"] = [], []
    data["measurements" if measured else "estimates"] = [
        _estimate(estimate, name, amount, scale, layer) | {"estimated": not measured}
        for name in names
        for scale in [1.0 if alike else chance.lognormvariate(0, 2)]
        for amount in amounts
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members | {"result.json": json.dumps(result).encode()}).items():
            archive.writestr(name, content)
    return file.getvalue()


def _estimate(
    estimate: dict[str, Any], name: str, amount: float, scale: float, layer: dict[str, Any]
) -> dict[str, Any]:
    damage = 0.001 * scale * amount**3
    changes = [
        change | {"value": damage, "delta": damage, "ci_low": 0.0, "ci_high": 2 * damage}
        for change in estimate["changes"]
    ]
    removed = {key: int(amount * layer[of]) for key, of in (("removed_params", "num_params"), ("removed_macs", "macs"))}
    return estimate | {"layer": name, "members": [name], "level": amount, "changes": changes, **removed}


def import_run(home: Path, content: bytes) -> str:
    """Import a run file into a home that no server serves, and return the id of the run."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "large.zip"
    file.write_bytes(content)
    backend = Backend(home, workers=0, data_roots=())
    try:
        return Service(backend).import_run(file)
    finally:
        backend.close()
        file.unlink()


async def cpu_of_pages(server: Served, run_ids: tuple[str, str]) -> dict[str, float]:
    """Return the seconds of processor time that each page of the first run takes, each tab, and its report."""
    first, second = run_ids
    pages = {
        "Results": ("results", f"run={first}"),
        "Schedule": ("schedule", f"run={first}"),
        "Compare": ("compare", f"run={first}&run={second}"),
        "Present": ("present", f"run={first}&screen=2"),
        "Runs": ("runs", ""),
    }
    found: dict[str, float] = {}
    async with Visitor(server.url, "guide"):
        await _until_quiet(server)  # the engine is loaded once
    for name, (page, query) in pages.items():
        before = _cpu_seconds(server)
        async with Visitor(server.url, page, query) as visitor:
            await visitor.wait_until(lambda page: "hourglass_empty" not in page.text())
            found[name] = await _until_quiet(server) - before
            for tab in _TABS if name == "Results" else ():
                before = _cpu_seconds(server)
                await visitor.open_tab(tab)
                found[f"Results, {tab}"] = await _until_quiet(server) - before
            if name == "Results":
                before = _cpu_seconds(server)
                address = await visitor.address_of("Download report")
                assert (await asyncio.to_thread(get, address, visitor.cookies))[0] == 200
                found["Report"] = await _until_quiet(server) - before
    return found


def _cpu_seconds(server: Served) -> float:
    """Return the processor time of the server and of the processes that work for it, ended ones included."""
    return sum(_own_and_ended(process) for process in (server.process, *server.process.children(recursive=True)))


def _own_and_ended(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


async def _until_quiet(server: Served) -> float:
    """Wait until nothing works any more, and return the processor time that was taken by then."""
    before = _cpu_seconds(server)
    while True:
        await asyncio.sleep(_QUIET_SECONDS)
        now = _cpu_seconds(server)
        if now - before < _QUIET_CPU_SECONDS:
            return before
        before = now


def _shapes(texts: list[str]) -> Iterator[tuple[int, int]]:
    for text in texts:
        layers, levels = map(int, text.split("x"))
        yield layers, levels


def main(arguments: list[str]) -> int:
    """Measure each shape, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=[f"{layers}x{levels}" for layers, levels in _SHAPES])
    slowest = 0.0
    for layers, levels in _shapes(parser.parse_args(arguments).shapes):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            first, second = (
                import_run(home, large_run_file(layers, levels, alike=not measured, measured=measured))
                for measured in (True, False)
            )
            with served(home, OMP_NUM_THREADS="1") as server:
                found = run_async(cpu_of_pages(server, (first, second)))
        slowest = max(slowest, *found.values())
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.items())
        sys.stdout.write(f"{layers} layers, {levels} levels: {told} (seconds of processor time)\n")
        sys.stdout.flush()
    return int(slowest > MOST_CPU_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
