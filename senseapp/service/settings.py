"""What whoever runs a server may set, as environment variables; docs/deploy.md explains each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from senseapp.errors import InvalidSpec


def whole_number(name: str, default: int, *, unit: str = "", least: int = 1) -> int:
    """Return the environment variable ``name`` as a number.

    Raises:
        InvalidSpec: it is not a whole number of at least ``least``.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        what = f"a whole number of {unit}" if unit else "a whole number"
        raise InvalidSpec(f"{name} must be {what} above {least - 1}, got {text!r}.")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How much a server does at once, and how much it keeps.

    Attributes:
        workers: runs that are measured at the same time.
        max_queue: runs that may wait.
        person_mb: disk space of one person's runs.
        server_mb: disk space of everybody's runs.
        keep_days: days after which a run that nobody touched is deleted; 0 keeps all for good.
        job_memory_mb: memory that one run may take; 0 allows nine tenths of what is free when it starts.
        job_processes: whether runs are measured in processes of their own, rather than in threads of this one.
        runs_per_minute: runs that one person may start.
        jobs_per_minute: proofs, histograms and other jobs on runs that one person may start.
        uploads_per_minute: files that one person may send.
    """

    workers: int = 1
    max_queue: int = 20
    person_mb: int = 8192
    server_mb: int = 65536
    keep_days: int = 0
    job_memory_mb: int = 0
    job_processes: bool = False
    runs_per_minute: int = 30
    jobs_per_minute: int = 60
    uploads_per_minute: int = 60

    @classmethod
    def configured(cls) -> ServerSettings:
        """Return the settings of this process's environment.

        Raises:
            InvalidSpec: one of them is not a number that makes sense.
        """
        usual = cls()
        return cls(
            workers=whole_number("SENSEAPP_WORKERS", usual.workers),
            max_queue=whole_number("SENSEAPP_MAX_QUEUE", usual.max_queue),
            person_mb=whole_number("SENSEAPP_RUNS_PER_PERSON_MB", usual.person_mb, unit="megabytes"),
            server_mb=whole_number("SENSEAPP_RUNS_IN_ALL_MB", usual.server_mb, unit="megabytes"),
            keep_days=whole_number("SENSEAPP_KEEP_RUNS_DAYS", usual.keep_days, unit="days", least=0),
            job_memory_mb=whole_number("SENSEAPP_JOB_MEMORY_MB", usual.job_memory_mb, unit="megabytes", least=0),
            job_processes=bool(whole_number("SENSEAPP_JOB_PROCESSES", int(usual.job_processes), least=0)),
            runs_per_minute=whole_number("SENSEAPP_RUNS_PER_MINUTE", usual.runs_per_minute),
            jobs_per_minute=whole_number("SENSEAPP_JOBS_PER_MINUTE", usual.jobs_per_minute),
            uploads_per_minute=whole_number("SENSEAPP_UPLOADS_PER_MINUTE", usual.uploads_per_minute),
        )
