"""Environment and load of the server for the System page, without information about runs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from senseapp import __version__
from senseapp.core.errors import StorageFailed
from senseapp.server.disk_space import bytes_in
from senseapp.server.settings import ServerSettings
from senseapp.store.run_store import RunStore

_LEAST_FREE_BYTES = 100_000_000
_PACKAGES = ("streamlit", "torch", "torchvision", "timm", "torch-pruning", "numpy", "pandas", "altair")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReport:
    """Bytes on the disk of the senseapp home; those of runs are None while the database cannot be read."""

    runs_bytes: int | None
    uploads_bytes: int
    logs_bytes: int
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """Snapshot of a server.

    Attributes:
        versions: of the packages that figures depend on, by name.
        device: the device of models; says so while torch is still being loaded.
        processors: cores that this process may use.
        engine_threads: of torch; None while it is not loaded.
        threads, memory_bytes: of this process.
        job_processes, job_memory_bytes: number of worker processes, and their memory together.
        memory_free_bytes, memory_total_bytes: of the machine.
        running, waiting: jobs of all users.
        workers, max_queue: limits of running and waiting jobs.
        up_seconds: since the server started.
        problems: problems of the database or the disk, in sentences.
    """

    versions: tuple[tuple[str, str], ...]
    python: str
    system: str
    device: str
    processors: int
    engine_threads: int | None
    threads: int
    memory_bytes: int
    job_processes: int
    job_memory_bytes: int
    memory_free_bytes: int
    memory_total_bytes: int
    running: int
    waiting: int
    workers: int
    max_queue: int
    disk: DiskReport
    up_seconds: float
    problems: tuple[str, ...] = ()


def system_report(
    home: Path,
    store: RunStore | None,
    settings: ServerSettings,
    *,
    running: int,
    waiting: int,
    job_pids: Sequence[int] = (),
) -> SystemReport:
    """Return the current state of the server; takes milliseconds, and never loads torch.

    Problems of disk and database are part of the report; ``store`` None means that the home cannot be used.
    """
    disk, problems = _disk(home, store)
    process, memory = psutil.Process(), psutil.virtual_memory()
    torch = sys.modules.get("torch")
    jobs = [taken for pid in job_pids if (taken := _memory_of(pid))]
    return SystemReport(
        versions=_versions(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        device=_device(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        engine_threads=torch.get_num_threads() if torch is not None and hasattr(torch, "get_num_threads") else None,
        threads=threading.active_count(),
        memory_bytes=process.memory_info().rss,
        job_processes=len(jobs),
        job_memory_bytes=sum(jobs),
        memory_free_bytes=memory.available,
        memory_total_bytes=memory.total,
        running=running,
        waiting=waiting,
        workers=settings.workers + settings.short_workers * settings.job_processes,
        max_queue=settings.max_queue,
        disk=disk,
        up_seconds=time.time() - process.create_time(),
        problems=problems,
    )


def _memory_of(pid: int) -> int:
    """Return the memory of a process in bytes, or 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _versions() -> tuple[tuple[str, str], ...]:
    found = {"senseapp": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return tuple(found.items())


def _device() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return "not known yet: the engine is being loaded"
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "processor (no accelerator found)"


def disk_problems(home: Path) -> tuple[str, ...]:
    """Return problems of the disk of ``home``, in sentences: no space, or not writable."""
    folder, problems = _existing(home), []
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < _LEAST_FREE_BYTES:
        problems.append(
            f"The disk has {free_bytes // 1_000_000} MB left: what runs and uploads write will fail. Free some space, "
            "or delete runs that nobody needs."
        )
    if not os.access(folder, os.W_OK):
        problems.append(
            f"The folder {folder.name} can only be read: runs and uploads will fail. Make it writable again."
        )
    return tuple(problems)


def _existing(home: Path) -> Path:
    return next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())


def _disk(home: Path, store: RunStore | None) -> tuple[DiskReport, tuple[str, ...]]:
    usage, problems = shutil.disk_usage(_existing(home)), [*disk_problems(home)]
    runs_bytes = None
    try:
        runs_bytes = store.bytes_used() if store is not None else None
    except StorageFailed as error:
        problems.append(str(error))
    report = DiskReport(
        runs_bytes=runs_bytes,
        uploads_bytes=bytes_in(home / "uploads"),
        logs_bytes=bytes_in(home / "logs"),
        free_bytes=usage.free,
        total_bytes=usage.total,
    )
    return report, tuple(problems)
