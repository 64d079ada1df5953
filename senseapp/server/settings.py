"""Settings of a server (docs/deploy.md), limits on requests, and the files that a user's run may read."""

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from senseapp.core.errors import InvalidCheckpoint, InvalidDataset, InvalidInput, InvalidSpec, RateLimited
from senseapp.core.files import files_at
from senseapp.core.foreign_values import BadValue, shown, whole
from senseapp.records.spec import RunSpec

LOCAL_OWNER = "local"
"""The only user of a server without login."""


def whole_number(name: str, default: int, *, unit: str = "", least: int = 1) -> int:
    """Return the environment variable ``name`` as a number; raises InvalidSpec unless it is whole and large enough."""
    text = os.environ.get(name, "").strip()
    try:
        return whole(text, name, least=least) if text else default
    except BadValue as error:
        what = f"a whole number of {unit}" if unit else "a whole number"
        raise InvalidSpec(f"{name} must be {what} above {least - 1}, got {shown(text)}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits on parallel work and on storage.

    Attributes:
        workers: runs that are measured at the same time.
        short_workers: short jobs that may run beside them, each in its process; 0: all jobs wait in one queue.
        person_mb, server_mb: disk space of one user's runs, and as much again of uploads; of all users' runs.
        upload_mb, uploads_mb: size of one upload, and of all users' uploads.
        keep_days: days after which an untouched run is deleted; 0 keeps all.
        job_processes: whether runs are measured in their own processes, rather than in threads of this one.
        recommend_seconds: longest predicted time of a recommendation that follows a run by itself, unless targets are
            the goal of the run; 0: none follows.
        runs_per_minute: per user, who may ask for twice as many jobs on runs, and ten times as many uploads.
    """

    workers: int = 1
    short_workers: int = 1
    max_queue: int = 20
    person_mb: int = 8192
    server_mb: int = 65536
    upload_mb: int = 2048
    uploads_mb: int = 32768
    keep_days: int = 0
    job_processes: bool = False
    recommend_seconds: int = 0
    runs_per_minute: int = 30

    @classmethod
    def configured(cls) -> Self:
        """Return the settings of this process's environment."""
        usual = cls()
        return cls(
            workers=whole_number("SENSEAPP_WORKERS", usual.workers),
            person_mb=whole_number("SENSEAPP_PER_PERSON_MB", usual.person_mb, unit="megabytes"),
            server_mb=whole_number("SENSEAPP_RUNS_IN_ALL_MB", usual.server_mb, unit="megabytes"),
            upload_mb=whole_number("SENSEAPP_MAX_UPLOAD_MB", usual.upload_mb, unit="megabytes"),
            uploads_mb=whole_number("SENSEAPP_UPLOADS_IN_ALL_MB", usual.uploads_mb, unit="megabytes"),
            keep_days=whole_number("SENSEAPP_KEEP_RUNS_DAYS", usual.keep_days, unit="days", least=0),
            job_processes=bool(whole_number("SENSEAPP_JOB_PROCESSES", int(usual.job_processes), least=0)),
            recommend_seconds=whole_number(
                "SENSEAPP_RECOMMEND_SECONDS", usual.recommend_seconds, unit="seconds", least=0
            ),
            runs_per_minute=whole_number("SENSEAPP_RUNS_PER_MINUTE", usual.runs_per_minute),
        )


LAST_PORT = 2**16 - 1  # TCP has 16 bits for it
Action = Literal["runs", "jobs on runs", "uploads"]

_WINDOW_SECONDS = 60.0  # limits are per minute
_PER_RUN: dict[Action, int] = {"runs": 1, "jobs on runs": 2, "uploads": 10}  # jobs: proofs, histograms, searches


class RateLimiter:
    """Counts each user's requests in the last minute; safe to use from any thread."""

    def __init__(self, runs_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs_per_minute = runs_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, Action], deque[float]] = {}

    def count(self, owner: str, action: Action) -> None:
        """Count one more ``action`` of ``owner``; raises RateLimited after too many in the last minute."""
        now, most = self._clock(), self._runs_per_minute * _PER_RUN[action]
        with self._lock:
            times = self._asked.setdefault((owner, action), deque(maxlen=most))
            if len(times) == most and (wait := times[0] + _WINDOW_SECONDS - now) > 0:
                raise RateLimited(
                    f"Up to {most} {action} a minute may be started here. Try again in {max(1, round(wait))} seconds."
                )
            times.append(now)


def configured_data_roots() -> tuple[Path, ...]:
    """Return the folders of ``SENSEAPP_DATA_ROOTS``, separated like ``PATH``."""
    entries = os.environ.get("SENSEAPP_DATA_ROOTS", "").split(os.pathsep)
    return tuple(Path(entry.strip()).expanduser().resolve() for entry in entries if entry.strip())


def uploads_folder(home: Path, owner: str) -> Path:
    """Return the folder of a user's uploads."""
    return home / "uploads" / owner_name(owner)


def owner_name(owner: str) -> str:
    """Return the name of a user's folders: a hash, so that no user text becomes a path."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def check_paths(spec: RunSpec, allowed: tuple[Path, ...]) -> None:
    """Require that every file the run reads exists and is, with links followed, in an allowed folder.

    Raises InvalidCheckpoint or InvalidDataset where a file is missing or elsewhere.
    """
    _check(spec.model.checkpoint, allowed, what="checkpoint", error=InvalidCheckpoint)
    for file in files_at(Path(spec.model.checkpoint)) if spec.model.checkpoint else ():  # of a folder, links too
        _check(str(file), allowed, what="checkpoint", error=InvalidCheckpoint)
    _check(spec.data.path, allowed, what="image folder or archive", error=InvalidDataset)


def _check(path: str, allowed: tuple[Path, ...], *, what: str, error: type[InvalidInput]) -> None:
    if not path:
        return
    try:
        resolved = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        resolved = None
    if resolved is None or not any(resolved.is_relative_to(folder.resolve()) for folder in allowed):
        raise error(
            f"This app reads a {what} only from uploads and from the folders in SENSEAPP_DATA_ROOTS; "
            f"{Path(path).name!r} is not there. Upload it, or ask for its folder to be added."
        )
