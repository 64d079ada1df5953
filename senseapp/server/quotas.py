"""Disk quotas of runs and uploads, removal of those no longer needed, and a limit on the memory that a job may take."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from senseapp.core.errors import OutOfMemory, QuotaExceeded, is_about_memory
from senseapp.core.files import MB
from senseapp.server.settings import whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Used and available disk space, in bytes.

    Attributes:
        own_bytes, own_limit_bytes: of one user's runs.
        all_bytes, all_limit_bytes: of all users' runs.
        free_bytes: on the disk that holds them.
        keep_days: see :class:`~senseapp.server.settings.ServerSettings`.
    """

    own_bytes: int
    own_limit_bytes: int
    all_bytes: int
    all_limit_bytes: int
    free_bytes: int
    keep_days: int


def check_run_room(use: DiskUse, num_bytes: int = 0) -> None:
    """Raise QuotaExceeded unless the quotas allow a new run, or ``num_bytes`` more."""
    more = f", and this adds {_megabytes(num_bytes)}" if num_bytes else ""
    if use.own_bytes + num_bytes >= use.own_limit_bytes:
        raise QuotaExceeded(
            f"Your runs may take {_megabytes(use.own_limit_bytes)} and take {_megabytes(use.own_bytes)}{more}. "
            "Delete some on the Runs page; those with compressed models are the largest."
        )
    if use.all_bytes + num_bytes >= use.all_limit_bytes:
        raise QuotaExceeded(
            f"The runs on this server may take {_megabytes(use.all_limit_bytes)} in all, and there is no room left"
            f"{more}. Delete runs that you no longer need, or ask whoever runs it."
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / MB:,.1f} MB" if num_bytes < 10 * MB else f"{num_bytes // MB:,} MB"


IsRead = Callable[[str], bool]
"""Whether any user's run reads the upload in the folder of this name."""


def sweep_uploads(everybodys: Path, *, is_read: IsRead, unused_seconds: float = 6 * 3600.0) -> None:
    """Remove uploads that were last written at least ``unused_seconds`` ago and that no run reads."""
    oldest = time.time() - unused_seconds
    for own in everybodys.glob("*/*/"):
        with suppress(FileNotFoundError):  # another upload may be removed at any time
            written = [path.lstat().st_mtime for path in own.iterdir()] or [own.lstat().st_mtime]
            if max(written) <= oldest and not is_read(own.name):
                shutil.rmtree(own, ignore_errors=True)


_SHARE_OF_FREE = 0.9  # of the memory for one job; the rest is for the server
_USUAL_STACK_BYTES = 8 * 1024 * 1024  # of a thread on Linux
_CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(*, most_bytes: float = math.inf, limited: bool = True) -> Iterator[None]:
    """Limit this process's data segment inside the block; for a process that does one thing at a time.

    An allocation beyond the limit fails as an error in the allocating code, where the system would grant it and later
    kill the process. Memory that the process holds already does not count. ``SENSEAPP_JOB_MEMORY_MB`` is the limit; 0
    allows nine tenths of what is free now.

    Args:
        most_bytes: a further bound where a foreign file is opened; the stacks of threads, which are reserved and hardly
            used, are added.
        limited: False for a job on an accelerator; there is no limit on systems without one either.

    Raises:
        OutOfMemory: the block needs more memory.
    """
    job_mb = whole_number("SENSEAPP_JOB_MEMORY_MB", 0, unit="megabytes", least=0)
    allowed = job_mb * MB or _SHARE_OF_FREE * free_bytes()
    used = _data_bytes() if limited else None
    before = (0, 0)
    if used is not None:
        import resource  # exists wherever the size of the data segment is known

        before = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + int(min(allowed, most_bytes + _stack_bytes()))
        highest = before[1] if before[1] != resource.RLIM_INFINITY else limit
        resource.setrlimit(resource.RLIMIT_DATA, (min(limit, highest), before[1]))
    try:
        yield
    except Exception as error:
        if is_about_memory(error):
            raise OutOfMemory(_memory_sentence(allowed, most_bytes)) from error
        raise
    finally:
        if used is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _memory_sentence(allowed: float, most_bytes: float) -> str:
    if most_bytes <= allowed:
        return (
            f"To open this takes more than the {most_bytes / 1e9:.1f} GB of memory that a file of its size "
            "may take here. Choose another file, or save this one again with the program that made it."
        )
    return (
        f"This needs more memory than there is for one run here ({allowed / 1e9:.1f} GB). Choose a smaller "
        "input size, fewer images in one batch, or a smaller model."
    )


def _data_bytes() -> int | None:
    """Return the size of this process's data segment, or None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    return next(found, None)


def _stack_bytes() -> int:
    """Return the reserved stack bytes of one thread per processor."""
    import resource

    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return (os.cpu_count() or 1) * (stack if 0 < stack <= _USUAL_STACK_BYTES else _USUAL_STACK_BYTES)


def free_bytes() -> int:
    """Return the free memory of the machine, or of the container if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if most == "max" else min(free, max(0, int(most) - int(used)))
    except (OSError, ValueError):
        return free
