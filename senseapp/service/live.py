"""What a running job has found so far, for a chart that fills as it goes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from senseapp.jobs import JobControl
from senseapp.results import LayerMeasurement, SensitivityResult, Status, latest

_log = logging.getLogger(__name__)


class LiveRun:
    """Collects a job's findings for readers in other threads, and passes its progress on.

    Args:
        control: of the job.
        on_plan: told the steps done by an earlier attempt and those planned, once they are known.
    """

    def __init__(self, control: JobControl, *, on_plan: Callable[[int, int], None]) -> None:
        self._control = control
        self._on_plan = on_plan
        self._lock = threading.Lock()
        self._head: SensitivityResult | None = None
        self._estimates: list[LayerMeasurement] = []
        self._measurements: list[LayerMeasurement] = []

    def so_far(self) -> SensitivityResult | None:
        """Return what is known; None before the model was loaded."""
        with self._lock:
            if self._head is None:
                return None
            return replace(self._head, estimates=tuple(self._estimates), measurements=latest(self._measurements))

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if sentence:
            _log.info("%s", sentence)
        self._control.phase(sentence)

    def opened(self, head: SensitivityResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Take up what an earlier attempt found."""
        with self._lock:
            self._head = head
            self._estimates = list(head.estimates)
            self._measurements = list(head.measurements)
        self._on_plan(done, total)
        self._control.plan(total=total, done=done, predicted_seconds=predicted_seconds or None)

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Show one estimate; only measurements count as steps."""
        with self._lock:
            self._estimates.append(estimate)
        self._control.check()

    def measured(self, measurement: LayerMeasurement) -> None:
        """Show one measurement."""
        with self._lock:
            self._measurements.append(measurement)
        if measurement.status is Status.NOT_APPLICABLE:  # passed over; not among those that are counted
            self._control.check()
        else:
            self._control.step(f"Measured {measurement.layer}")
