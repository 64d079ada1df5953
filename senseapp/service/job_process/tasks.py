"""The kinds of work on a finished run that may be sent to another process."""

from __future__ import annotations

from typing import Any

from senseapp.service.histogram_task import HistogramTask
from senseapp.service.run_task import RunTask
from senseapp.service.strongest_search import StrongestSearch
from senseapp.service.verification import Verification
from senseapp.spec.codec import decode, encode, register

_KINDS: dict[str, type[Any]] = {
    kind.__name__: register(kind) for kind in (HistogramTask, StrongestSearch, Verification)
}


def encode_task(task: RunTask) -> dict[str, Any]:
    """Return the JSON object of a task."""
    return encode(task)


def decode_task(payload: dict[str, Any]) -> RunTask:
    """Return the task that :func:`encode_task` was given."""
    task: RunTask = decode(payload, _KINDS[payload["type"]])
    return task
