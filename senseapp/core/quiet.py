"""Quiet moments: a process that times something asks the others that work for the same server to pause.

A process at work holds a shared lock, and releases it for a moment where it reports progress. One that times waits
until nobody holds it, for a few seconds at most, and takes it; those that report meanwhile wait until it is done.
The system takes the locks of a process back when it ends, however that is. Without a file of locks, which the server
names to its processes, nothing happens.
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
"""Environment variable, of the server for its own processes, with the path of the file whose locks these are."""

_WAIT_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_log = logging.getLogger(__name__)


class _Locks:
    """The two locks of a file: ``room``, held by who works, and ``turn``, taken on the way to it."""

    def __init__(self, path: Path) -> None:
        import fcntl  # not on Windows

        self._fcntl = fcntl
        self._room, self._turn = (self._opened(path, name) for name in (".room", ".turn"))

    @staticmethod
    def _opened(path: Path, suffix: str) -> IO[bytes]:
        return path.with_name(path.name + suffix).open("ab")

    def enter(self) -> None:
        """Begin to work, or go on; waits while another process times something."""
        self._fcntl.flock(self._turn, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._room, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)

    def leave(self) -> None:
        """Let others time something."""
        self._fcntl.flock(self._room, self._fcntl.LOCK_UN)

    def take(self) -> bool:
        """Wait until no other process works, and let none begin; return False where one goes on for too long."""
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
        """End the quiet moment."""
        self.leave()
        self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)


_at_work: _Locks | None = None


@contextmanager
def at_work() -> Iterator[None]:
    """Mark this process as one that works inside the block; for one piece of work at a time."""
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
    """Let another process time something, if one waits for that."""
    if _at_work is not None:
        _at_work.leave()
        _at_work.enter()


@contextmanager
def quiet() -> Iterator[None]:
    """Time something inside the block while other processes of the server pause; says in the log where one did not."""
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
