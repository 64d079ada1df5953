"""Requests to worker processes: what they are, who owns them, and how many are answered at the same time.

A hostile file keeps its process busy until its time limit. So that others do not wait for it, each user has a few of
all slots, and a request ends once its page is closed.
"""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from senseapp.core.errors import Abandoned, ReadingStopped
from senseapp.core.files import files_at
from senseapp.records.spec import ModelSpec, RunSpec
from senseapp.server.quotas import MemoryGuard
from senseapp.server.settings import LOCAL_OWNER

_CHECK_SECONDS = 0.25  # interval at which a waiting request checks whether its page is open


def _stays() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Origin of a request.

    Attributes:
        person: the user whose slots it takes.
        is_gone: returns whether the requesting page was closed.
    """

    person: str = ""
    is_gone: Callable[[], bool] = field(default=_stays)

    def turn_of(self, owner: str) -> str:
        """Return whose turn in the queue a job of ``owner`` takes: without login each page's own."""
        return self.person or ("" if owner == LOCAL_OWNER else owner)

    def check(self, subject: str) -> None:
        """Raise Abandoned once the requester is gone."""
        if self.is_gone():
            raise Abandoned(
                f"{subject} was not read to its end, as the page that needs it was closed. Open the page again."
            )


ANYBODY = Requester()
"""Never gone: the command line, and the server itself."""


class Slots:
    """Limits how many requests are answered at once, in total and per user; safe to use from any thread.

    Args:
        most: in total.
        most_each: per user. Users with fewer slots go first, then those who wait longer.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._changed = threading.Condition()
        self._held: Counter[str] = Counter()
        self._waiting: dict[int, str] = {}  # users by ticket, in order of arrival
        self._tickets = 0

    @contextmanager
    def hold(self, requester: Requester, subject: str) -> Iterator[None]:
        """Wait for a slot and hold it inside the block; Abandoned if the page of ``subject`` closes before."""
        self._take(requester, subject)
        try:
            yield
        finally:
            with self._changed:
                self._held[requester.person] -= 1
                self._held += Counter()  # drops those without any
                self._changed.notify_all()

    def _take(self, requester: Requester, subject: str) -> None:
        with self._changed:
            ticket = self._tickets = self._tickets + 1
            self._waiting[ticket] = requester.person
            try:
                while self._next() != ticket:
                    self._changed.wait(_CHECK_SECONDS)
                    requester.check(subject)
                self._held[requester.person] += 1
            finally:
                del self._waiting[ticket]
                self._changed.notify_all()

    def _next(self) -> int | None:
        """Return the ticket that may go next; None while no waiting one has a slot."""
        if self._held.total() >= self._most:
            return None
        may_go = (item for item in self._waiting.items() if self._held[item[1]] < self._most_each)
        return min(may_go, key=lambda item: (self._held[item[1]], item[0]), default=(None, ""))[0]


AnswerT_co = TypeVar("AnswerT_co", covariant=True)

OPEN_SECONDS = 8.0
"""To open a file: a hostile one has its sentence within ten."""
BYTES_PER_SECOND = 50e6
"""Of a large file on a slow disk."""
COPIES = 3
"""Of a checkpoint's weights: as loaded, as numbers of 32 bits, and in the network."""
_TEXT_COPIES = 20  # bytes of memory for each of a text, as JSON takes them
_MODEL_SECONDS, _MODEL_BYTES = 120.0, 8e9  # to build a large network and run it once
_SMALL_SECONDS, _SMALL_BYTES = 15.0, 1.2e9  # for the same of a network that a small file describes
_SECONDS_PER_BYTE, _BYTES_PER_BYTE = 2e-5, 1e3  # more for each byte of such a file, up to the limits of large ones
OPEN_BYTES = 280e6
"""Of memory, whatever is free: what a lying file may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest(ABC, Generic[AnswerT_co]):
    """One request; it and its answer are plain values that can be written as JSON."""

    answer_type: ClassVar[type[Any]]
    needs_engine: ClassVar[bool] = True
    """Whether torch is loaded before; without it, a server that has just started answers seconds earlier."""

    @property
    def subject(self) -> str:
        """Name of the file or model of the request, for display."""
        return "This file"

    @property
    def seconds(self) -> float:
        """Processor time that it may take once the engine is loaded; on a busy machine it may last longer."""
        return OPEN_SECONDS

    @property
    def memory_bytes(self) -> float:
        """Limit of memory beyond the engine, however much is free."""
        return OPEN_BYTES

    @abstractmethod
    def answer(self) -> AnswerT_co:
        """Open the file and find out.

        Raises:
            InvalidInput: it cannot be used, with one sentence on why.
        """


@contextmanager
def reading_limits(path: Path) -> Iterator[None]:
    """Hold the limits of requests on time and memory while a command reads a text file in this process.

    Raises:
        ReadingStopped: it takes too long; known where the system has timers, in the main thread.
        OutOfMemory: it takes more memory than a file of its size may.
    """
    with MemoryGuard(most_bytes=OPEN_BYTES + _TEXT_COPIES * num_bytes(str(path))).job():
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield
            return
        seconds = OPEN_SECONDS + num_bytes(str(path)) / BYTES_PER_SECOND

        def stop(number: int, frame: object) -> None:
            raise stopped(path.name, seconds)

        before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def stopped(subject: str, seconds: float) -> ReadingStopped:
    """Return the error for a file that took longer than its limit."""
    return ReadingStopped(
        f"{subject} kept the process that reads it busy for {seconds:.0f} s, so it was stopped. "
        "Choose another file, or save this one again with the program that made it."
    )


def model_seconds(model: ModelSpec, *files: str) -> float:
    """Return the processor time in which a network, and ``files`` beside its own, can be opened and run once.

    An ONNX file describes its network itself: a few hundred bytes may ask for any amount of work.
    """
    size = sum(map(num_bytes, (model.checkpoint, *files)))
    own = min(_MODEL_SECONDS, _SMALL_SECONDS + _SECONDS_PER_BYTE * size) if _is_described(model) else _MODEL_SECONDS
    return own + size / BYTES_PER_SECOND


def model_bytes(model: ModelSpec, *files: str) -> float:
    """Return the memory beyond the engine for the same."""
    size = sum(map(num_bytes, (model.checkpoint, *files)))
    own = min(_MODEL_BYTES, _SMALL_BYTES + _BYTES_PER_BYTE * size) if _is_described(model) else _MODEL_BYTES
    return own + COPIES * size


def _is_described(model: ModelSpec) -> bool:
    return model.library == "onnx"


class NetworkRequest(WorkerRequest[AnswerT_co]):
    """Request that builds a network, and loads its checkpoint if there is one."""

    __slots__ = ()
    passes: ClassVar[int] = 1
    """How many times as long as to open the network and run it once an answer may take."""

    @property
    @abstractmethod
    def network(self) -> ModelSpec:
        """The network."""

    @property
    def subject(self) -> str:
        """The model's title."""
        return self.network.title

    @property
    def seconds(self) -> float:
        """Limit from the size of the checkpoint."""
        return self.passes * model_seconds(self.network)

    @property
    def memory_bytes(self) -> float:
        """Limit from the size of the checkpoint; pictures are decoded in processes with their own limit."""
        return model_bytes(self.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(NetworkRequest[AnswerT_co]):
    """Request about a model."""

    model: ModelSpec

    @property
    def network(self) -> ModelSpec:
        """The network."""
        return self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(NetworkRequest[AnswerT_co]):
    """Request with the settings of a run."""

    spec: RunSpec

    @property
    def network(self) -> ModelSpec:
        """That of the run."""
        return self.spec.model


def num_bytes(path: str) -> int:
    """Return the size of a file, or of the files in a folder; 0 for none."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in files_at(Path(path))) if path else 0
    return 0
