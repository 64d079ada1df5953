"""Quiet periods: a process that times something lets the other worker processes of its server pause.

A busy process holds a shared lock, and releases it briefly at each progress report. A timing process waits until nobody
holds it, for a few seconds at most, and acquires it; reports of the others then wait until it is released. The system
releases the locks of a process that ends in any way. Without a lock file, whose path the server passes to its
processes, nothing happens.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

QUIET_FILE = "_SENSEAPP_QUIET_FILE"
"""Environment variable that a server sets for its own processes, with the path of the lock file."""

_WAIT_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_log = logging.getLogger(__name__)


class _Locks:
    """The two locks of a file: ``room``, held by busy processes, and ``turn``, held while acquiring it."""

    def __init__(self, path: Path) -> None:
        import fcntl  # not on Windows

        self._fcntl = fcntl
        self._room, self._turn = (self._opened(path, name) for name in (".room", ".turn"))

    @staticmethod
    def _opened(path: Path, suffix: str) -> IO[bytes]:
        return path.with_name(path.name + suffix).open("ab")

    def enter(self) -> None:
        """Begin or continue work; waits while another process times something."""
        self._fcntl.flock(self._turn, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._room, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)

    def leave(self) -> None:
        """Allow others to time something."""
        self._fcntl.flock(self._room, self._fcntl.LOCK_UN)

    def take(self) -> bool:
        """Wait until no other process is busy, and keep others from starting; return False on timeout."""
        self.leave()
        self._fcntl.flock(self._turn, self._fcntl.LOCK_EX)
        end = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < end:
            try:
                self._fcntl.flock(self._room, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)
            else:
                return True
        return False

    def give_back(self) -> None:
        """End the quiet period."""
        self.leave()
        self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)


_at_work: _Locks | None = None


@contextmanager
def at_work() -> Iterator[None]:
    """Mark this process as busy inside the block; for one piece of work at a time."""
    global _at_work
    path = os.environ.get(QUIET_FILE, "")
    _at_work = _Locks(Path(path)) if path and os.name == "posix" else None
    if _at_work is not None:
        _at_work.enter()
    try:
        yield
    finally:
        if _at_work is not None:
            _at_work.leave()
        _at_work = None


def pause() -> None:
    """Pause while another process times something, if one waits for that."""
    if _at_work is not None:
        _at_work.leave()
        _at_work.enter()


@contextmanager
def quiet() -> Iterator[None]:
    """Time something inside the block while other processes of the server pause; logs if one did not."""
    locks = _at_work
    if locks is None:
        yield
        return
    if not locks.take():
        _log.warning("times were taken beside other work, which did not pause within %.0f s", _WAIT_SECONDS)
    try:
        yield
    finally:
        locks.give_back()
        locks.enter()
