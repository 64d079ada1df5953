"""Processes that measure: their environment, quiet moments while one times something, and child processes.

Freed memory: by default glibc returns large blocks to the system at once, so that every pass over a network takes page
faults for its activations: on ResNet-50 with 32 images 15 to 50 % of the time. Further threads need one arena for all.

Waiting threads: a pass waits for its slowest thread after each operation. Threads that spin take the processor from
the one they wait for; threads that sleep at once have to be woken each time. Spinning as by default, briefly, or not
at all, a small network took 1.5, 1.5 and 4.9 ms alone on two cores, and 720, 25 and 15 ms beside eight busy processes.
The number of spins is understood by GNU's library; with another one, threads sleep at once.

Quiet moments: a process at work holds a shared lock, and releases it for a moment where it reports progress. One that
times waits until nobody holds it, for a few seconds at most, and takes it; those that report meanwhile wait until it
is done. The system takes the locks of a process back when it ends, however that is. Without a file of locks, which the
server names to its processes, nothing happens.
"""

import ctypes
import gc
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

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
    """Keeps one object between pieces of work from :meth:`keep` to :meth:`clear`.

    An object has one owner: it is left by code that will not use it again, and removed when it is taken.
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
"""This process's own."""


QUIET_FILE = "_SENSEAPP_QUIET_FILE"
"""Environment variable, of the server for its own processes, with the path of the file whose locks these are."""

_WAIT_SECONDS = 10.0  # for other jobs to pause
_log = logging.getLogger(__name__)


class _Locks:
    """The two locks of a file: ``room``, held by who works, and ``turn``, taken on the way to it."""

    def __init__(self, path: Path) -> None:
        import fcntl  # not on Windows

        self._fcntl = fcntl
        self._room, self._turn = (path.with_name(path.name + each).open("ab") for each in (".room", ".turn"))

    def enter(self) -> None:
        """Begin to work, or go on; waits while another process times something."""
        self._fcntl.flock(self._turn, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._room, self._fcntl.LOCK_SH)
        self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)

    def leave(self) -> None:
        """Let others time something."""
        self._fcntl.flock(self._room, self._fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Block new work inside the block; True where no other process works any more, False after a timeout."""
        self.leave()
        self._fcntl.flock(self._turn, self._fcntl.LOCK_EX)
        end, is_alone = time.monotonic() + _WAIT_SECONDS, False
        while not is_alone and time.monotonic() < end:
            try:
                self._fcntl.flock(self._room, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB)
                is_alone = True
            except BlockingIOError:
                time.sleep(0.02)  # between looks
        try:
            yield is_alone
        finally:
            self.leave()
            self._fcntl.flock(self._turn, self._fcntl.LOCK_UN)
            self.enter()


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection while many records are built: it finds nothing, and takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
    """Pause while another process times something."""
    if _at_work is not None:
        _at_work.leave()
        _at_work.enter()


@contextmanager
def quiet() -> Iterator[None]:
    """Time something inside the block while other processes of the server pause; says in the log where one did not."""
    if _at_work is None:
        yield
        return
    with _at_work.alone() as is_alone:
        if not is_alone:
            _log.warning("times were taken beside other work, which did not pause within %.0f s", _WAIT_SECONDS)
        yield


class ChildProcess:
    """A running Python program, which ends once ``requests``, its standard input, is closed.

    ``errors`` is a file for its standard error stream, which is else discarded.
    """

    def __init__(
        self, *program: str, errors: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.DEVNULL,
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # Ctrl-C is for the command line alone; it then closes this
        )
        self.pid = self._process.pid
        self.requests, self.answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process at once; one that runs C code would not read a request to stop."""
        self._process.kill()
        self._process.wait()

    def end(self, patience_seconds: float = 0.0) -> int:
        """Close its input and return its exit status; it is killed if it does not end within so many seconds."""
        with suppress(OSError):  # what was not sent yet
            self.requests.close()
        try:
            return self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def write_line(stream: IO[bytes], message: Any) -> None:
    """Write a message; the caller flushes the stream."""
    stream.write(json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n")


def read_line(stream: IO[bytes]) -> Any:
    """Return the next message; EOFError once the stream is closed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return json.loads(line)
