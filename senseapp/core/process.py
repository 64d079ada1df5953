"""Environment of processes that measure: retention of freed memory in the C library, and waiting of OpenMP threads.

Freed memory: by default glibc returns large blocks to the system at once, so that every pass over a network takes page
faults for its activations: on ResNet-50 with 32 images 15 to 50 % of the time. Further threads need one arena for all.

Waiting threads: a pass waits for its slowest thread after each operation. Threads that spin take the processor from the
one they wait for; threads that sleep at once must be woken each time. With default spinning, brief spinning and none, a
small network took 1.5, 1.5 and 4.9 ms alone on two cores, and 720, 25 and 15 ms beside eight busy processes. GNU's
library supports the number of spins; with another one, threads sleep at once.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),  # the largest that glibc accepts
}
_THREADS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"}  # about a tenth of a millisecond


def measuring_environment(*, beside_others: bool = True) -> dict[str, str]:
    """Return this process's environment with the settings for measuring; existing values take precedence.

    Threads do not spin for long if other processes may be busy (``beside_others``).
    """
    threads = _THREADS if beside_others and "OMP_WAIT_POLICY" not in os.environ else {}
    return _MEMORY | threads | os.environ


def become_measuring(*, beside_others: bool = True) -> None:
    """Re-execute this program, as the same process, unless it has the environment for measuring."""
    _become(measuring_environment(beside_others=beside_others))


def become_serving() -> None:
    """Re-execute this program unless its threads share one memory arena, as a server runs for a long time."""
    _become({"MALLOC_ARENA_MAX": _MEMORY["MALLOC_ARENA_MAX"]} | os.environ)


def _become(environment: dict[str, str]) -> None:
    if environment == os.environ:
        return
    if platform.system() == "Linux":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    else:
        os.environ.update(environment)  # for torch's threads; the memory settings are glibc's


def give_back_freed_memory() -> None:
    """Return memory that this process has freed to the system, with glibc."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class ProcessCache:
    """Keeps one object between pieces of work until :meth:`clear`; disabled before :meth:`keep`, and after it.

    An object has one owner: it is left by code that will not use it again, and removed when it is taken. For a process
    that does one piece of work at a time.
    """

    def __init__(self) -> None:
        self._keeps = False
        self._left: tuple[Hashable, Any] | None = None

    def keep(self) -> None:
        """Enable the cache."""
        self._keeps = True

    def leave(self, key: Hashable, thing: object) -> None:
        """Keep ``thing`` under ``key``, in place of the previous object."""
        if self._keeps:
            self._left = key, thing

    def take(self, key: Hashable) -> Any:
        """Remove and return the object if it was left under ``key``, else None; the cache is empty afterwards."""
        left, self._left = self._left, None
        return left[1] if left is not None and left[0] == key else None

    def drop(self) -> None:
        """Release the object, to free its memory."""
        self._left = None

    def clear(self) -> None:
        """Disable the cache, and return all memory to the system, freed memory included."""
        self._keeps, self._left = False, None
        give_back_freed_memory()


PROCESS_CACHE = ProcessCache()
"""The cache of this process."""
