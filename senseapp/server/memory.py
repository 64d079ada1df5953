"""Memory limit of jobs: one that is too large ends with a sentence instead of ending the server."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from senseapp.core.errors import OutOfMemory, is_about_memory

_MB = 1_000_000
_SHARE_OF_FREE = 0.9
_USUAL_STACK_BYTES = 8 * 1024 * 1024
_CGROUP = Path("/sys/fs/cgroup")


class MemoryGuard:
    """Limits this process's data segment while jobs run; does nothing on systems without such a limit.

    An allocation beyond the limit fails as an error in the allocating code, where the system would grant it and later
    kill the process. Memory that the process holds already does not count. ``job_mb`` is memory for one job; 0 allows
    nine tenths of the memory that is free when the first of several starts. ``most_bytes`` bounds it further where a
    foreign file is opened; the stacks of threads, which are reserved and hardly used, are added.
    """

    def __init__(self, job_mb: int = 0, *, most_bytes: float = math.inf) -> None:
        self._job_bytes = job_mb * _MB
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._jobs = 0
        self._before: tuple[int, int] | None = None

    @contextmanager
    def job(self, *, limited: bool = True) -> Iterator[None]:
        """Limit the memory in the body, unless it runs on an accelerator; OutOfMemory if the limit is exceeded."""
        self._begin(limited)
        try:
            yield
        except Exception as error:
            if is_about_memory(error):
                raise OutOfMemory(self._sentence()) from error
            raise
        finally:
            self._end()

    def _sentence(self) -> str:
        allowed = self._job_bytes or free_bytes()
        if self._most_bytes < allowed:
            return (
                f"To open this takes more than the {self._most_bytes / 1e9:.1f} GB of memory that a file of its size "
                "may take here. Choose another file, or save this one again with the program that made it."
            )
        return (
            f"This needs more memory than there is for one run here ({allowed / 1e9:.1f} GB). Choose a smaller input "
            "size, fewer images in one batch, or a smaller model."
        )

    def _begin(self, limited: bool) -> None:
        with self._lock:
            self._jobs += 1
            used = _data_bytes()
            if not limited or used is None or self._before is not None:
                return
            import resource  # exists wherever the size of the data segment is known

            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            limit = used + (self._job_bytes or int(_SHARE_OF_FREE * free_bytes()))
            if self._most_bytes < math.inf:
                limit = min(limit, used + int(self._most_bytes) + _stack_bytes())
            most = self._before[1]
            resource.setrlimit(
                resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most)
            )

    def _end(self) -> None:
        with self._lock:
            self._jobs -= 1
            if not self._jobs and self._before is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_DATA, self._before)
                self._before = None


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
