"""The protocol of job processes: lines of strict JSON, never pickle; a task goes in, what it finds comes back.

The app sends ``["task", {...}]``. The process says ``phase``, ``opened``, ``estimated`` and ``measured`` as they come,
asks ``find`` and ``taken`` about earlier runs, each of which the app answers with ``["answer", ...]``, and ends with
``done``, ``refused`` (an error with a sentence) or ``crashed`` (a trace). To cancel, the app ends the process: whatever
was measured is on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from senseapp.core.codec import decode, encode, register
from senseapp.core.process import at_work, pause
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult
from senseapp.server.execution import Measurement
from senseapp.server.layer_tasks import AnswersTask, DiagnosisTask, HistogramTask, HistogramWall, LayerAnswers
from senseapp.server.schedule_tasks import DeliverTask, RecommendationTask, StrongestSearch, TimingTask, Verification
from senseapp.server.session import open_local_session
from senseapp.server.tasks import RunTask, TaskContext
from senseapp.store.run_folder import RunFolder

_KINDS: dict[str, type[Any]] = {
    kind.__name__: register(kind)
    for kind in (
        *(Measurement, HistogramTask, HistogramWall, LayerAnswers, DiagnosisTask, RecommendationTask),
        *(StrongestSearch, Verification, DeliverTask, TimingTask, AnswersTask),
    )
}


class Line(NamedTuple):
    """One message; records in its body are as :func:`senseapp.core.codec.encode` gives them."""

    kind: str
    body: Any = None


def write_line(stream: IO[bytes], kind: str, body: Any = None) -> None:
    """Send a message."""
    stream.write(json.dumps([kind, body], allow_nan=False, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def read_line(stream: IO[bytes]) -> Line | None:
    """Return the next message, or None once the other side is gone."""
    text = stream.readline()
    if not text.endswith(b"\n"):
        return None
    return Line(*json.loads(text))


def decode_task(payload: dict[str, Any]) -> RunTask:
    """Return the task that :func:`senseapp.core.codec.encode` was given."""
    task: RunTask = decode(payload, _KINDS[payload["type"]])
    return task


class AppObserver:
    """The app as a task in another process sees it: ``say`` tells it something, ``answer`` waits for its answer.

    Where progress is told, another process of the server may time something before the task goes on.
    """

    def __init__(self, say: Callable[[str, Any], None], answer: Callable[[], Any]) -> None:
        self._say = say
        self._answer = answer

    def phase(self, sentence: str) -> None:
        """Tell what begins."""
        if sentence:
            self._say("phase", sentence)
        pause()

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Tell what is known before the first measurement."""
        self._say("opened", [encode(head), {"done": done, "total": total, "predicted_seconds": predicted_seconds}])

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Tell one estimate."""
        self._say("estimated", encode(estimate))
        pause()

    def measured(self, measurement: LayerMeasurement) -> None:
        """Tell one measurement."""
        self._say("measured", encode(measurement))
        pause()

    def find(self, content_key: str) -> RunResult | None:
        """Ask for an earlier run."""
        self._say("find", content_key)
        found = self._answer()
        return None if found is None else decode(found, RunResult)

    def taken(self, count: int, total: int) -> Reused:
        """Tell how much was taken from it, and ask for the record of that."""
        self._say("taken", [count, total])
        return decode(self._answer(), Reused)


def carry_out_here(request: dict[str, Any], app: AppObserver, **session: Any) -> None:
    """Do the task of a request in this process; ``session`` are further arguments of how a session is opened."""
    context = TaskContext(
        folder=RunFolder(Path(request["folder"])),
        observer=app,
        data_roots=tuple(map(Path, request["data_roots"])),
        earlier_runs=app,
        open_session=partial(open_local_session, **session),
    )
    with at_work():
        decode_task(request["task"]).carry_out(context)
