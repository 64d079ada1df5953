"""Protocol of worker processes: lines of strict JSON, never pickle; tasks in, results out.

The app sends ``["task", {...}]``. The process sends ``phase``, ``opened``, ``estimated`` and ``measured`` as they
occur, requests ``find`` and ``taken`` about earlier runs, to each of which the app responds with ``["answer", ...]``,
and ends with ``done``, ``refused`` (an error with a sentence) or ``crashed`` (a trace). To cancel, the app ends the
process: all measurements are on disk.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from senseapp.core.codec import decode, encode, from_plain, to_plain
from senseapp.core.process import at_work, pause
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult
from senseapp.server.session import EarlierRuns, open_local_session
from senseapp.server.tasks import RunObserver, RunTask, TaskContext
from senseapp.store.run_folder import RunFolder


class Line(NamedTuple):
    """One message; records in its body are encoded by :func:`senseapp.core.codec.encode`."""

    kind: str
    body: Any = None


def write_line(stream: IO[bytes], kind: str, body: Any = None) -> None:
    """Send a message."""
    stream.write(json.dumps([kind, body], allow_nan=False, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def read_line(stream: IO[bytes]) -> Line | None:
    """Return the next message, or None once the stream is closed."""
    text = stream.readline()
    if not text.endswith(b"\n"):
        return None
    return Line(*json.loads(text))


def encode_task(task: RunTask) -> dict[str, Any]:
    """Return a task as JSON, with the place of its type."""
    kind = type(task)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "data": to_plain(task)}


def decode_task(payload: dict[str, Any]) -> RunTask:
    """Return the task from the result of :func:`encode_task`."""
    task: RunTask = from_plain(payload["data"], pkgutil.resolve_name(payload["type"]), name="task")
    return task


class AppObserver(RunObserver, EarlierRuns):
    """Observer of a task in a worker process that forwards to the app: ``say`` sends, ``answer`` waits for a response.

    Each progress report is also a point at which another process of the server may time something first.
    """

    def __init__(self, say: Callable[[str, Any], None], answer: Callable[[], Any]) -> None:
        self._say = say
        self._answer = answer

    def phase(self, sentence: str) -> None:
        """Send the step that begins."""
        if sentence:
            self._say("phase", sentence)
        pause()

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Send the facts known before the first measurement."""
        self._say("opened", [encode(head), {"done": done, "total": total, "predicted_seconds": predicted_seconds}])

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Send one estimate."""
        self._say("estimated", encode(estimate))
        pause()

    def measured(self, measurement: LayerMeasurement) -> None:
        """Send one measurement."""
        self._say("measured", encode(measurement))
        pause()

    def find(self, content_key: str) -> RunResult | None:
        """Request an earlier run."""
        self._say("find", content_key)
        found = self._answer()
        return None if found is None else decode(found, RunResult)

    def taken(self, count: int, total: int) -> Reused:
        """Report how many measurements were reused, and request the record of that."""
        self._say("taken", [count, total])
        return decode(self._answer(), Reused)


def carry_out_here(request: dict[str, Any], app: AppObserver, **session: Any) -> None:
    """Carry out the task of a request in this process; ``session`` are further arguments for opening a session."""
    context = TaskContext(
        folder=RunFolder(Path(request["folder"])),
        observer=app,
        data_roots=tuple(map(Path, request["data_roots"])),
        earlier_runs=app,
        alike=tuple(map(Path, request["alike"])),
        open_session=partial(open_local_session, **session),
    )
    with at_work():
        decode_task(request["task"]).carry_out(context)
