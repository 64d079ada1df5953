"""What the C library does with freed memory: while a model is measured, one pass hands it on to the next.

By default glibc gives large blocks back to the kernel as soon as they are freed, so that every pass over a model has
to fault each page of its activations in anew: on ResNet-50 with 32 images 75,000 to 540,000 faults a pass, which took
15 to 50 % of its time. Elsewhere than on glibc nothing is changed.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from threading import RLock

# Names and values of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST_BYTES = 2**31 - 1  # mallopt takes an int
_KEPT_BLOCK_BYTES = 2**30
_USUAL_BLOCK_BYTES, _USUAL_TRIM_BYTES = 4 * 2**20, 8 * 2**20

_lock = RLock()  # a finalizer may run inside it
_owners = 0


def share_one_arena() -> None:
    """Let all threads take memory from one pool; to be called before a program starts its threads.

    The pools that glibc gives to further threads are cut into pieces of 64 MiB that are given back one by one, so
    passes in a worker thread would not profit from :func:`keep_freed_memory_for`.
    """
    if library := _glibc():
        library.mallopt(_M_ARENA_MAX, 1)


def keep_freed_memory_for(owner: object) -> None:
    """Keep freed memory in this process for as long as ``owner`` lives; then give it back to the system."""
    global _owners
    library = _glibc()
    if library is None:
        return
    with _lock:
        _owners += 1
        if _owners == 1:
            library.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _MOST_BYTES)
    weakref.finalize(owner, _released, library)


def _released(library: ctypes.CDLL) -> None:
    global _owners
    with _lock:
        _owners -= 1
        if _owners == 0:
            library.mallopt(_M_MMAP_THRESHOLD, _USUAL_BLOCK_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _USUAL_TRIM_BYTES)
            library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        _: tuple[Callable[..., int], ...] = (library.gnu_get_libc_version, library.mallopt, library.malloc_trim)
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return None
    return library
