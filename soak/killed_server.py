"""What a soak of kills does to a running app: ends its processes, slows its disk, and looks at what is left."""

from __future__ import annotations

import re
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import psutil
import safetensors

from senseapp.records.jobs import RunState
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.schedule import StrongestFound, ValidationResult
from senseapp.server.settings import LOCAL_OWNER
from senseapp.store.run_store import RunStore
from soak.served import Served
from soak.visitor import Visitor

PAGES = ("", "results", "schedule", "runs", "compare", "system")
SLOW_DISK = {"PYTHONPATH": str(Path(__file__).parent / "slow_disk")}
"""Settings of a server that waits a fifth of a second while a file is half in place, its job processes too."""
_LEFT_SECONDS = 15.0
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{32}")


def job_processes(server: Served) -> list[psutil.Process]:
    """Return the processes that work for the app now."""
    return [process for process in server.process.children(recursive=True) if process.status() != psutil.STATUS_ZOMBIE]


def kill_server(server: Served) -> list[psutil.Process]:
    """End the server at once, and return the processes that worked for it."""
    jobs = job_processes(server)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    return jobs


def kill_jobs(server: Served) -> None:
    """End every process that works for the app at once."""
    for process in job_processes(server):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    """Wait for processes whose server was killed: they end by themselves."""
    _, left = psutil.wait_procs(processes, timeout=_LEFT_SECONDS)
    assert not left, f"{len(left)} job processes outlive their server by {_LEFT_SECONDS:.0f} s"


def half_written(home: Path) -> list[Path]:
    """Return the files that are being written just now, or were when a process died."""
    return [path for path in home.rglob(".*") if _HALF_WRITTEN.fullmatch(path.name)]


def wait_for_file(home: Path, wanted: str, *, seconds: float = 60.0) -> None:
    """Wait until a file whose name matches the regular expression lies anywhere in ``home``; it need not stay."""
    pattern, deadline = re.compile(wanted), time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError):  # a folder goes while it is listed
            if any(pattern.search(path.name) for path in home.rglob("*")):
                return
        time.sleep(0.003)
    raise AssertionError(f"no file {wanted} came within {seconds:.0f} s")


def check_leftovers(home: Path) -> None:
    """Look for what a process that was killed has left, before anybody brings anything new."""
    assert not half_written(home), f"half-written files are left: {[path.name for path in half_written(home)]}"
    for own in (path.parent for path in (home / "uploads").glob("*/*/upload")):
        assert RunStore(home).reads_upload(own.name), f"an unfinished upload that nobody reads is left: {own.name}"
    assert not [path for path in (home / "tmp").rglob("*") if path.is_file()], "a download's file is left"


def check_home(home: Path) -> None:
    """Look at the database and the files of runs: all are whole, and nothing is half written."""
    with sqlite3.connect(home / "senseapp.sqlite3") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not half_written(home), f"half-written files are left: {[path.name for path in half_written(home)]}"
    store = RunStore(home)
    records = store.list(LOCAL_OWNER)
    assert {record.run_id for record in records} == {path.name for path in store.folder_of_runs.iterdir()}
    for record in records:
        folder = store.folder(record.run_id)
        assert folder.spec() == record.spec
        folder.measurements.read()
        assert record.state is not RunState.DONE or folder.load_result().shown
        for kind in (ValidationResult, StrongestFound, QuantizationHistogram):
            folder.records(kind)
        for proof in folder.path.glob("validation-*.json"):
            with safetensors.safe_open(folder.compressed_model(proof.stem.split("-")[1]), "np") as weights:
                assert weights.keys()


async def open_pages(server: Served, run_id: str = "") -> dict[str, list[str]]:
    """Open every page (PageBroke where one shows an error of its own), and return what each warns of."""
    said = {}
    for page in PAGES:
        async with Visitor(server.url, page, f"run={run_id}" if run_id else "") as visitor:
            await visitor.wait_until(lambda shown: "hourglass_empty" not in shown.text())
            said[page or "analyze"] = visitor.alerts()
    return said
