"""Homes that cannot be used as they should: a full disk, a read-only one, a damaged database, a second server.

A full disk is a small tmpfs without a byte left, a read-only one is mounted so; both need root, on Linux.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from senseapp.records.jobs import RunState
from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_store import RunStore
from soak.crowd import start_run
from soak.killed_server import check_home, check_leftovers, kill_server, open_pages
from soak.served import MB, ROOT, Served, served
from soak.visitor import Visitor
from tests.asynchronous import run_async

SETTINGS = {"OMP_NUM_THREADS": "1"}
_FULL = "No space left on device"
_RUN_SECONDS = 60.0
_LEVELS = "5, 15, 25, 35, 45, 55, 65, 85, 95"
_DAMAGED = re.compile(r"malformed|not a database|disk image")


def full_from_the_start(begun: Path, home: Path) -> None:
    """Every page opens, with its content or a sentence; what cannot be kept is refused."""
    with _disk(begun, home, free_mb=2):
        filler = _fill(home)
        with _served(home) as server:
            run_async(_full_from_the_start(server))
        filler.unlink()
        with _served(home) as server:
            _each_says(run_async(open_pages(server, _finished(begun))), "The disk has")  # 2 MB are not much either
            check_home(home)
            assert len(RunStore(home).list(LOCAL_OWNER)) == 1


async def _full_from_the_start(server: Served) -> None:
    _each_says(await open_pages(server), "disk")
    async with Visitor(server.url) as page:
        if "Run" in page.labels():
            await _press_run(page)
            await page.wait_until(lambda shown: any(_FULL in said or "full" in said for said in shown.alerts()))


def full_in_a_run(begun: Path, home: Path) -> None:
    """The run fails with a sentence, keeps what it measured, and goes on once there is room."""
    with _disk(begun, home, free_mb=20), _served(home) as server:
        run_async(_full_in_a_run(server))
        check_home(home)


async def _full_in_a_run(server: Served) -> None:
    async with Visitor(server.url) as page:
        run_id = await start_run(page, images=600, seed=7, more_levels=_LEVELS)  # long enough to be met in the middle
        folder = RunStore(server.home).folder(run_id)
        deadline = time.monotonic() + _RUN_SECONDS
        while folder.measurements.count() < 5:
            assert time.monotonic() < deadline, "nothing was measured"
            await asyncio.sleep(0.005)
        filler = _fill(server.home)
        assert not folder.finished
        log = _log_folder(server.home) / "server.log"
        await page.wait_until(lambda shown: f"run {run_id} failed" in log.read_text())  # the database tells nobody now
        kept = folder.measurements.count()
        assert kept >= 5
        _each_says(await open_pages(server, run_id), "disk")
        filler.unlink()
        await page.go("results", f"run={run_id}")
        await page.wait_until(lambda shown: "Try again" in shown.labels(), seconds=_RUN_SECONDS)
        assert any(_FULL in sentence for sentence in page.alerts()), page.alerts()
        await page.click("Try again")
        await page.wait_until(lambda shown: shown.has_finished, seconds=_RUN_SECONDS)
        assert len(folder.load_result().measurements) >= kept


def full_in_an_upload(begun: Path, home: Path) -> None:
    """The page says why the file was not taken, and nothing of it is left."""
    with _disk(begun, home, free_mb=30), _served(home) as server:
        run_async(_full_in_an_upload(server))
        check_leftovers(home)
        check_home(home)


async def _full_in_an_upload(server: Served) -> None:
    async with Visitor(server.url) as page:
        await page.set("button_group", "Where they come from", string_array_value=["Upload images"])
        await page.upload("Images", "pictures.zip", bytes(60 * MB), keep=True)
        await page.wait_until(lambda shown: any(_FULL in sentence for sentence in shown.alerts()))
    await open_pages(server, _finished(server.home))


def read_only_from_the_start(begun: Path, home: Path) -> None:
    """Every page says so."""
    with _disk(begun, home, free_mb=10):
        _mount("-o", "remount,ro", home)
        with _served(home) as server:
            _each_says(run_async(open_pages(server)), "writable")


def read_only_and_empty(begun: Path, home: Path) -> None:
    """The same for a home that nobody has used."""
    home.mkdir()
    read_only_from_the_start(home, home)


def read_only_while_it_runs(begun: Path, home: Path) -> None:
    """What is there is shown, every page says what is wrong, and nothing is lost."""
    with _disk(begun, home, free_mb=200), _served(home) as server:
        run_async(open_pages(server))
        _mount("--bind", home, home)
        try:
            _mount("-o", "remount,bind,ro", home)
            _each_says(run_async(open_pages(server, _finished(begun))), "writable")
        finally:
            _unmount(home)
        _says_nothing(server, _finished(begun))
        check_home(home)


def a_database_of_nonsense(begun: Path, home: Path) -> None:
    """Every page names the file; with the old one back, everything is there."""
    _damaged(begun, home, lambda content: b"nonsense" * (len(content) // 8))


def a_database_cut_short(begun: Path, home: Path) -> None:
    """The same where the end is missing."""
    _damaged(begun, home, lambda content: content[: len(content) // 2])


def _damaged(begun: Path, home: Path, damage: Callable[[bytes], bytes]) -> None:
    shutil.copytree(begun, home)
    database = home / "senseapp.sqlite3"
    sound = database.read_bytes()
    database.write_bytes(damage(sound))
    with _served(home) as server:
        _each_says(run_async(open_pages(server)), "senseapp.sqlite3")
    database.write_bytes(sound)
    with _served(home) as server:
        _says_nothing(server, _finished(home))
        check_home(home)


def a_database_damaged_while_it_runs(begun: Path, home: Path) -> None:
    """Every page names the file; with the old one back, the server goes on."""
    shutil.copytree(begun, home)
    with _served(home) as server:
        database_damaged_under(server, _finished(home))
        check_home(home)


def database_damaged_under(server: Served, run_id: str) -> None:
    """Overwrite the database of a running server, look at every page, and put it back."""
    database = server.home / "senseapp.sqlite3"
    run_async(open_pages(server, run_id))
    sound = database.read_bytes()
    database.write_bytes(sound[:4096] + os.urandom(len(sound) - 4096))
    _each_says(run_async(open_pages(server, run_id)), "senseapp.sqlite3")
    database.write_bytes(sound)
    _says_nothing(server, run_id)


def a_second_server(begun: Path, home: Path) -> None:
    """It names the first and ends; the first goes on."""
    shutil.copytree(begun, home)
    with _served(home) as server:
        _second_is_refused(server)
        _says_nothing(server, _finished(home))


def a_second_server_while_the_first_measures(begun: Path, home: Path) -> None:
    """The run of the first is left alone."""
    shutil.copytree(begun, home)
    with _served(home) as server:
        run_async(_measure_beside_another(server))
        check_home(home)


async def _measure_beside_another(server: Served) -> None:
    async with Visitor(server.url) as page:
        run_id = await start_run(page, images=256, seed=7, more_levels=_LEVELS)
        while not RunStore(server.home).folder(run_id).measurements.count():
            await asyncio.sleep(0.005)
        await asyncio.to_thread(_second_is_refused, server)
        assert RunStore(server.home).record(run_id).state in (RunState.RUNNING, RunState.DONE)
        await page.wait_until(lambda shown: shown.has_finished, seconds=_RUN_SECONDS)
        assert RunStore(server.home).record(run_id).state is RunState.DONE


def a_second_server_after_the_first_was_killed(begun: Path, home: Path) -> None:
    """The home is free at once."""
    shutil.copytree(begun, home)
    with _served(home) as server:
        kill_server(server)
        with _served(home) as second:
            _says_nothing(second, _finished(home))
            check_home(home)


CONDITIONS: dict[str, tuple[Callable[[Path, Path], None], ...]] = {
    "full disk": (full_from_the_start, full_in_a_run, full_in_an_upload),
    "read-only home": (read_only_from_the_start, read_only_and_empty, read_only_while_it_runs),
    "corrupt database": (a_database_of_nonsense, a_database_cut_short, a_database_damaged_while_it_runs),
    "two servers on one home": (
        a_second_server,
        a_second_server_while_the_first_measures,
        a_second_server_after_the_first_was_killed,
    ),
}


def _each_says(said: dict[str, list[str]], what: str) -> None:
    silent = {page: sentences for page, sentences in said.items() if not any(what in one for one in sentences)}
    assert not silent, f"these pages do not say {what!r}: {silent}"


def _says_nothing(server: Served, run_id: str) -> None:
    said = run_async(open_pages(server, run_id))
    assert not any(said.values()), f"the pages still say {said}"


def _second_is_refused(server: Served) -> None:
    command = [sys.executable, "-m", "senseapp.app.server.serve", "--server.port=1"]
    environment = os.environ | {"SENSEAPP_HOME": str(server.home)}
    second = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert second.returncode == 1, second
    assert f"process {server.process.pid}, since" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr


async def _press_run(page: Visitor) -> None:
    await page.wait_until(lambda shown: " layers × " in shown.text(), seconds=_RUN_SECONDS)
    await page.click("Run")


def _finished(home: Path) -> str:
    """Return the id of the run that was finished first."""
    return RunStore(home).list(LOCAL_OWNER)[-1].run_id


def _log_folder(home: Path) -> Path:
    return home.with_name(f"{home.name}-log")


@contextmanager
def _served(home: Path) -> Iterator[Served]:
    """Serve a home, with the log elsewhere: it may have no room."""
    with served(_log_folder(home), SENSEAPP_HOME=str(home), **SETTINGS) as server:
        yield Served(url=server.url, home=home, process=server.process)


@contextmanager
def _disk(begun: Path, home: Path, *, free_mb: int) -> Iterator[None]:
    """Put a copy of ``begun`` on a disk of its own that has little room left, at ``home``."""
    taken = sum(path.stat().st_size for path in begun.rglob("*") if path.is_file())
    home.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={taken + free_mb * MB}", "tmpfs", home)
    try:
        if begun != home:
            shutil.copytree(begun, home, dirs_exist_ok=True)
        yield
    finally:
        _unmount(home)


def _fill(home: Path) -> Path:
    """Write to the disk of ``home`` until it takes no byte more, and return the file that holds the room."""
    filler = home / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (MB, 4096, 1):
            try:
                while stream.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return filler


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


def _unmount(home: Path) -> None:
    subprocess.run(["umount", "--lazy", str(home)], check=True, capture_output=True)
