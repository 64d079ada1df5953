"""What was logged about a run, kept with its files, so that its owner can read why it failed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from senseapp.errors import SenseError
from senseapp.service.json_lines import JsonLines
from senseapp.store import RunStore, storage_errors

_FILE = "log.jsonl"
_MOST_BYTES = 1_000_000
_PACKAGE = logging.getLogger("senseapp")
_current: ContextVar[str] = ContextVar("run", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One line of a log.

    Attributes:
        time: in UTC.
        level: as of :mod:`logging`, in small letters.
        message: one sentence.
        trace: where an error came from; empty for anything else.
    """

    time: datetime
    level: str
    message: str
    trace: str = ""


@contextmanager
def during_run(run_id: str) -> Iterator[None]:
    """Say that what this thread logs in the body is about the run ``run_id``."""
    token = _current.set(run_id)
    try:
        yield
    finally:
        _current.reset(token)


class RunLogs(logging.Handler):
    """Writes what senseapp logs about a run into the run's folder; :meth:`close` ends it.

    A record is about a run if it says so (``extra={"run": run_id}``) or was logged :func:`during_run`.
    """

    def __init__(self, store: RunStore) -> None:
        super().__init__(logging.INFO)
        self._store = store
        self.setFormatter(JsonLines())
        _PACKAGE.addHandler(self)
        if _PACKAGE.getEffectiveLevel() > logging.INFO:
            _PACKAGE.setLevel(logging.INFO)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let a record pass that is about a run, and write down which."""
        run_id = record.__dict__.get("run") or _current.get()
        record.__dict__["run"] = run_id  # for the handlers that come after this one
        return bool(run_id)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record to the log of its run; a disk that refuses must not fail the run."""
        with suppress(SenseError, OSError):
            path = self._store.folder(record.__dict__["run"]).path / _FILE
            if path.parent.is_dir() and (not path.is_file() or path.stat().st_size < _MOST_BYTES):
                with path.open("a", encoding="utf-8") as stream:
                    stream.write(self.format(record) + "\n")

    def close(self) -> None:
        """Stop listening."""
        _PACKAGE.removeHandler(self)
        super().close()


def read_run_log(folder: Path) -> tuple[LogEntry, ...]:
    """Return what was logged about the run in ``folder``, the oldest first; lines that a crash cut are left out.

    Raises:
        StorageFailed: it cannot be read.
    """
    if not (folder / _FILE).is_file():
        return ()
    with storage_errors(_FILE):
        lines = (folder / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(entry for line in lines if (entry := _entry(line)) is not None)


def _entry(line: str) -> LogEntry | None:
    try:
        told = json.loads(line)
        return LogEntry(
            time=datetime.fromisoformat(told["time"]),
            level=told["level"],
            message=told["message"],
            trace=told.get("trace", ""),
        )
    except (ValueError, KeyError, TypeError):
        return None
