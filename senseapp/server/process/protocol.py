"""Protocol of worker processes: lines of strict JSON, never pickle; tasks and questions in, results out.

For a task the process sends ``phase``, ``identified``, ``opened``, ``estimated`` and ``measured`` as they occur, and
ends with ``done``, ``refused`` (an error with a sentence) or ``crashed`` (a trace); a question is answered by
``answer``. To cancel, the app ends the process: all measurements are on disk.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from senseapp.core.codec import from_plain, to_plain
from senseapp.server.tasks import EarlierRun, RunTask


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task with its context.

    Attributes:
        task: see :func:`encode_task`.
        folder, data_roots, earlier: see :class:`~senseapp.server.tasks.TaskContext`.
        device: on the processor of this machine, memory is limited to ``job_mb`` and ``most_bytes``.
        address: of the cluster that measures; empty for this machine.
    """

    task: dict[str, Any]
    folder: Path
    data_roots: tuple[Path, ...]
    earlier: tuple[EarlierRun, ...]
    device: str
    address: str
    job_mb: int
    most_bytes: float | None


def encode_task(task: RunTask) -> dict[str, Any]:
    """Return a task as JSON, with the place of its type."""
    kind = type(task)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "data": to_plain(task)}


def decode_task(payload: dict[str, Any]) -> RunTask:
    """Return the task from the result of :func:`encode_task`."""
    task: RunTask = from_plain(payload["data"], pkgutil.resolve_name(payload["type"]), name="task")
    return task
