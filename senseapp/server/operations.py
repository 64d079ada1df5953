"""The server's log, one JSON object a line without secrets, of which owners see what it says of their runs.

Also its state for the System page, which says nothing about anybody's runs.
"""

import json
import logging
import logging.handlers
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from senseapp.core.files import storage_errors
from senseapp.server.settings import ServerSettings
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
        self._secret = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")  # without any, it matches nothing

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": getattr(record, "run", ""),
            "message": self._secret.sub("[secret]", record.getMessage()),
            "trace": self._secret.sub("[secret]", self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in told.items() if value}, ensure_ascii=False)


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

    A record is about a run if it was logged :func:`during_run`.
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
        record.__dict__["run"] = _current.get()  # for later handlers
        return bool(_current.get())

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """State of a server.

    Attributes:
        running, waiting: jobs of all users.
        job_pids: of its worker processes.
        runs_bytes: on the disk; None while the database cannot be read.
        problems: of the database or the disk, in sentences.
    """

    home: Path
    settings: ServerSettings = field(default_factory=ServerSettings)
    running: int = 0
    waiting: int = 0
    job_pids: tuple[int, ...] = ()
    runs_bytes: int | None = None
    problems: tuple[str, ...] = ()


def disk_problems(home: Path) -> Iterator[str]:
    """Yield problems of the disk of ``home``, in sentences: no space, or not writable."""
    folder = existing_folder(home)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < 100_000_000:
        yield (
            f"The disk has {free_bytes // 1_000_000} MB left: what runs and uploads write will fail. Free some space, "
            "or delete runs that nobody needs."
        )
    if not os.access(folder, os.W_OK):
        yield f"The folder {folder.name} can only be read: runs and uploads will fail. Make it writable again."


def existing_folder(home: Path) -> Path:
    """Return ``home``, or the nearest folder above it that exists."""
    return next(folder for folder in (home, *home.absolute().parents) if folder.is_dir())
