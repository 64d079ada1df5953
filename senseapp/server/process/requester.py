"""Requests to worker processes: how they are sent, who owns them, and their limits.

For a task the process sends ``phase``, ``opened`` and ``measured`` as they occur, and ends with ``done``, ``refused``
(an error with a sentence) or ``crashed`` (a trace); a question is answered by ``answer``. To cancel, the app ends the
process: all measurements are on disk. A request ends once its page is closed.
"""

import inspect
import math
import pkgutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from senseapp.core.codec import from_plain, to_plain
from senseapp.core.errors import Abandoned, ReadingStopped
from senseapp.core.files import files_at
from senseapp.records.spec import ModelSpec
from senseapp.server.machine import memory_limit
from senseapp.server.settings import LOCAL_OWNER
from senseapp.server.tasks import RunTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Origin of a request: its user, and whether the requesting page was closed."""

    person: str = ""
    is_gone: Callable[[], bool] = lambda: False

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


AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

OPEN_SECONDS = 8.0
"""To open a file: a hostile one has its sentence within ten."""
BYTES_PER_SECOND = 50e6
"""Of a large file on a slow disk."""
COPIES = 3
"""Of a checkpoint's weights: as loaded, as numbers of 32 bits, and in the network."""
_MODEL_SECONDS, _MODEL_BYTES = 120.0, 8e9  # to build a large network and run it once
_SMALL_SECONDS, _SMALL_BYTES = 15.0, 1.2e9  # for the same of a network that a small file describes
_SECONDS_PER_BYTE, _BYTES_PER_BYTE = 2e-5, 1e3  # more for each byte of such a file, up to the limits of large ones
OPEN_BYTES = 280e6
"""Of memory, whatever is free: what a lying file may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest(Generic[AnswerT_co]):
    """A call of a function of a module, with arguments and an answer that can be written as JSON.

    Attributes:
        call: the function with its arguments; the annotations of the function say how they are read again.
        subject: name of the file or model, for display.
        seconds: processor time that it may take once the engine is loaded; on a busy machine it may last longer.
        memory_bytes: limit of memory beyond the engine, however much is free.
    """

    call: partial[AnswerT_co]
    subject: str = "This file"
    seconds: float = OPEN_SECONDS
    memory_bytes: float = OPEN_BYTES

    def encoded(self) -> dict[str, Any]:
        """Return the call as JSON."""
        function = self.call.func
        given = inspect.signature(function).bind(*self.call.args, **self.call.keywords).arguments
        return {"function": f"{function.__module__}:{function.__qualname__}", "arguments": to_plain(given)}

    def decoded(self, answer: Any) -> AnswerT_co:
        """Return the answer from its JSON; InvalidFile where it is not one."""
        found: AnswerT_co = from_plain(answer, get_type_hints(self.call.func)["return"])
        return found


class Line(NamedTuple):
    """One message; records in its body are encoded by :func:`senseapp.core.codec.encode`."""

    kind: str
    body: Any = None


def encode_task(task: RunTask) -> dict[str, Any]:
    """Return a task as JSON, with the place of its type."""
    kind = type(task)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "data": to_plain(task)}


def decode_task(payload: dict[str, Any]) -> RunTask:
    """Return the task from the result of :func:`encode_task`."""
    task: RunTask = from_plain(payload["data"], pkgutil.resolve_name(payload["type"]), name="task")
    return task


def answer_here(encoded: dict[str, Any]) -> Any:
    """Make an encoded call, and return the answer as JSON."""
    function = pkgutil.resolve_name(encoded["function"])
    kinds = get_type_hints(function)
    arguments = {name: from_plain(value, kinds[name]) for name, value in encoded["arguments"].items()}
    return to_plain(function(**arguments))


def file_request(call: partial[AnswerT], path: str, *, subject: str = "", copies: int = 0) -> WorkerRequest[AnswerT]:
    """Return a request about one file, with limits from its size; ``copies`` of it are held in memory."""
    size = num_bytes(path)
    return WorkerRequest(
        call=call,
        subject=subject or Path(path).name,
        seconds=OPEN_SECONDS + size / BYTES_PER_SECOND,
        memory_bytes=OPEN_BYTES + copies * size,
    )


def network_request(
    call: partial[AnswerT], model: ModelSpec, *files: str, subject: str = "", passes: int = 1
) -> WorkerRequest[AnswerT]:
    """Return a request that builds a network; ``passes`` times as long as to run it once it may take.

    Pictures are decoded in processes with limits of their own.
    """
    seconds, memory = model_limits(model, *files)
    return WorkerRequest(call=call, subject=subject or model.title, seconds=passes * seconds, memory_bytes=memory)


@contextmanager
def reading_limits(path: Path) -> Iterator[None]:
    """Hold the limits of requests on time and memory while a command reads a text file in this process.

    Raises ReadingStopped where it takes too long, if the system has timers, in the main thread, and OutOfMemory where
    it takes more memory than a file of its size may.
    """
    # JSON takes some 20 bytes of memory for each of a text.
    with memory_limit(most_bytes=OPEN_BYTES + 20 * num_bytes(str(path))):
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


def model_limits(model: ModelSpec, *files: str) -> tuple[float, float]:
    """Return processor time, and memory beyond the engine, to open a network, and ``files`` beside its own, and run it.

    An ONNX file describes its network itself: a few hundred bytes may ask for any amount of work.
    """
    size = sum(map(num_bytes, (model.checkpoint, *files)))
    described = size if model.library == "onnx" else math.inf
    seconds = min(_MODEL_SECONDS, _SMALL_SECONDS + _SECONDS_PER_BYTE * described) + size / BYTES_PER_SECOND
    return seconds, min(_MODEL_BYTES, _SMALL_BYTES + _BYTES_PER_BYTE * described) + COPIES * size


def num_bytes(path: str) -> int:
    """Return the size of a file, or of the files in a folder; 0 for none."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in files_at(Path(path))) if path else 0
    return 0
