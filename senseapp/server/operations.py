"""The server's log, one JSON object a line without secrets, and what it runs on and how busy it is.

Owners see what the log says of their runs; the System page says nothing about anybody's runs.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from senseapp import __version__
from senseapp.core.errors import StorageFailed
from senseapp.core.files import storage_errors
from senseapp.server.settings import ServerSettings
from senseapp.store.run_folder import bytes_in
from senseapp.store.run_store import RunStore

_SECRET_NAME = re.compile(r"(SECRET|TOKEN|PASSWORD|PASSWD|API_KEY|CREDENTIALS?)$", re.IGNORECASE)
_READABLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Formats a record as ``{"time": ..., "level": ..., "logger": ..., "run": ..., "message": ..., "trace": ...}``.

    ``secrets``, and those of the environment, are redacted wherever they occur.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        own = (value for name, value in os.environ.items() if _SECRET_NAME.search(name))
        found = {secret for secret in (*secrets, *own) if len(secret) >= 6}  # shorter ones would redact ordinary words
        longest_first = sorted(found, key=len, reverse=True)
        self._secret = re.compile("|".join(map(re.escape, longest_first))) if found else None

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": getattr(record, "run", ""),
            "message": self._without_secrets(record.getMessage()),
            "trace": self._without_secrets(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in told.items() if value}, ensure_ascii=False)

    def _without_secrets(self, text: str) -> str:
        return self._secret.sub("[secret]", text) if self._secret is not None else text


def log_to(home: Path, secrets: Iterable[str] = ()) -> None:
    """Log to files under ``home`` and to the standard error stream: JSON, but plain lines on a terminal."""
    lines = JsonLines(secrets)
    stream = logging.StreamHandler()
    stream.setFormatter(logging.Formatter(_READABLE) if sys.stderr.isatty() else lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(stream)
    with storage_errors("the folder logs"):
        (home / "logs").mkdir(parents=True, exist_ok=True)
        file = logging.handlers.RotatingFileHandler(
            home / "logs" / "senseapp.jsonl",
            maxBytes=10_000_000,
            backupCount=5,  # 60 MB in all
            encoding="utf-8",
        )
    file.setFormatter(lines)
    root.addHandler(file)
    logging.captureWarnings(True)


_FILE = "log.jsonl"
_MOST_BYTES = 1_000_000  # of the log of one run: a loop of warnings must not fill the disk
_PACKAGE = logging.getLogger("senseapp")
_current: ContextVar[str] = ContextVar("run", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One line of a log: time in UTC, level in small letters, and where an error came from."""

    time: datetime
    level: str
    message: str
    trace: str = ""


@contextmanager
def during_run(run_id: str) -> Iterator[None]:
    """Attribute log records of this thread inside the block to the run ``run_id``."""
    token = _current.set(run_id)
    try:
        yield
    finally:
        _current.reset(token)


class RunLogs(logging.Handler):
    """Writes senseapp's log records about a run into the run's folder; :meth:`close` ends it.

    A record is about a run if it names it (``extra={"run": run_id}``) or was logged :func:`during_run`.
    """

    def __init__(self, store: RunStore) -> None:
        super().__init__(logging.INFO)
        self._store = store
        self.setFormatter(JsonLines())
        _PACKAGE.addHandler(self)
        if _PACKAGE.getEffectiveLevel() > logging.INFO:
            _PACKAGE.setLevel(logging.INFO)

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept records about a run, and set the run's id on them."""
        run_id = record.__dict__.get("run") or _current.get()
        record.__dict__["run"] = run_id  # for later handlers
        return bool(run_id)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record to the log of its run; a failed write must not fail the run."""
        with suppress(OSError):
            path = self._store.folder_of_runs / record.__dict__["run"] / _FILE  # absent for a run of another store
            if path.parent.is_dir() and (not path.is_file() or path.stat().st_size < _MOST_BYTES):
                with path.open("a", encoding="utf-8") as stream:
                    stream.write(self.format(record) + "\n")

    def close(self) -> None:
        """Remove this handler."""
        _PACKAGE.removeHandler(self)
        super().close()


def read_run_log(folder: Path) -> tuple[LogEntry, ...]:
    """Return the log of the run in ``folder``, oldest first, without lines cut off by a crash."""
    if not (folder / _FILE).is_file():
        return ()
    with storage_errors(_FILE):
        lines = (folder / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    entries = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            when, trace = datetime.fromisoformat(told["time"]), told.get("trace", "")
            entries.append(LogEntry(time=when, level=told["level"], message=told["message"], trace=trace))
    return tuple(entries)


_PACKAGES = ("streamlit", "torch", "torchvision", "timm", "torch-pruning", "numpy", "pandas", "altair")


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
        runs_bytes, uploads_bytes, logs_bytes: on the disk; those of runs are None while the database cannot be read.
        disk_free_bytes, disk_total_bytes: of the disk.
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
    runs_bytes: int | None
    uploads_bytes: int
    logs_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
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
    runs_bytes, problems, jobs = None, list(disk_problems(home)), []
    try:
        runs_bytes = None if store is None else store.bytes_used()
    except StorageFailed as error:
        problems.append(str(error))
    for pid in job_pids:
        with suppress(psutil.Error):  # it has ended
            jobs.append(psutil.Process(pid).memory_info().rss)
    process, memory, disk = psutil.Process(), psutil.virtual_memory(), shutil.disk_usage(_existing(home))
    torch = sys.modules.get("torch")
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
        runs_bytes=runs_bytes,
        uploads_bytes=bytes_in(home / "uploads"),
        logs_bytes=bytes_in(home / "logs"),
        disk_free_bytes=disk.free,
        disk_total_bytes=disk.total,
        up_seconds=time.time() - process.create_time(),
        problems=tuple(problems),
    )


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
    if free_bytes < 100_000_000:
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
