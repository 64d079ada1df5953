"""Environment of processes that measure: how the C library keeps freed memory, and how OpenMP's threads wait.

Freed memory: by default glibc gives large blocks back to the system at once, so that every pass over a network faults
its activations in anew: on ResNet-50 with 32 images 15 to 50 % of the time. Further threads need one arena for all.

Waiting threads: a pass waits for its slowest thread after each operation. Threads that spin take the processor from
the one they wait for; threads that sleep at once have to be woken each time. Spinning as by default, briefly, or not
at all, a small network took 1.5, 1.5 and 4.9 ms alone on two cores, and 720, 25 and 15 ms beside eight busy processes.
The number of spins is understood by GNU's library; with another one, threads sleep at once.
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
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),  # the largest that glibc takes
}
_THREADS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "3000"}  # about a tenth of a millisecond


def measuring_environment(*, beside_others: bool = True) -> dict[str, str]:
    """Return this process's environment for one that measures; what it says already stays as it is.

    Threads do not spin for long where other processes may be busy (``beside_others``).
    """
    threads = _THREADS if beside_others and "OMP_WAIT_POLICY" not in os.environ else {}
    return _MEMORY | threads | os.environ


def become_measuring(*, beside_others: bool = True) -> None:
    """Start this program anew, as the same process, unless it has the environment of one that measures."""
    _become(measuring_environment(beside_others=beside_others))


def become_serving() -> None:
    """Start this program anew unless all of its threads take memory from one place: a server lives long."""
    _become({"MALLOC_ARENA_MAX": _MEMORY["MALLOC_ARENA_MAX"]} | os.environ)


def _become(environment: dict[str, str]) -> None:
    if environment == os.environ:
        return
    if platform.system() == "Linux":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    else:
        os.environ.update(environment)  # for torch's threads; the memory settings are glibc's


def give_back_freed_memory() -> None:
    """Give memory that this process has freed back to the system, where the C library is glibc."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class ProcessCache:
    """Keeps what is left until :meth:`clear`; before :meth:`keep`, and after it, nothing stays.

    A thing has one owner: it is left by whoever is done with it and will not touch it again, and gone once taken. For
    a process that does one piece of work at a time.
    """

    def __init__(self) -> None:
        self._keeps = False
        self._left: tuple[Hashable, Any] | None = None

    def keep(self) -> None:
        """Keep what is left from now on."""
        self._keeps = True

    def leave(self, key: Hashable, thing: object) -> None:
        """Keep ``thing`` for whoever asks for ``key`` next, in place of what was left before."""
        if self._keeps:
            self._left = key, thing

    def take(self, key: Hashable) -> Any:
        """Return what was left as ``key``, or None; either way nothing is left any more."""
        left, self._left = self._left, None
        return left[1] if left is not None and left[0] == key else None

    def drop(self) -> None:
        """Forget the thing; for who needs its room."""
        self._left = None

    def clear(self) -> None:
        """Give everything back to the system, freed memory included."""
        self._keeps, self._left = False, None
        give_back_freed_memory()


PROCESS_CACHE = ProcessCache()
"""This process's own."""
