"""Progress of a job: what the work reports, what is known of its time, and how it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


class JobCancelled(Exception):
    """Raised inside the work after a request to stop it."""


class JobControl:
    """Reports progress; each report also checks for a cancel, and raises :class:`JobCancelled` if there is one.

    Args:
        stop: set when the work should end.
        update: receives named changes of the job's :class:`JobProgress`.
        clock: monotonic seconds.
    """

    def __init__(self, stop: threading.Event, update: Callable[..., None], clock: Callable[[], float]) -> None:
        self._stop = stop
        self._update = update
        self._clock = clock
        self._done = 0

    def check(self) -> None:
        """Raise :class:`JobCancelled` if the work should end."""
        if self._stop.is_set():
            raise JobCancelled

    def phase(self, sentence: str) -> None:
        """Report the current step; an empty sentence reports nothing new."""
        if sentence:
            self._update(phase=sentence)
        self.check()

    def plan(self, *, total: int, done: int = 0, predicted_seconds: float | None = None) -> None:
        """Report the number of steps, how many an earlier attempt finished, and the predicted seconds of all."""
        self._done = done
        now = self._clock()
        self._update(
            total=total, done=done, resumed=done, planned=now, last_step=now, predicted_seconds=predicted_seconds
        )
        self.check()

    def step(self, sentence: str = "") -> None:
        """Count one more finished step."""
        self._done += 1
        changes = {"phase": sentence} if sentence else {}
        self._update(done=self._done, last_step=self._clock(), **changes)
        self.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """Snapshot of a job's progress; times are of a monotonic clock.

    Attributes:
        phase: one short sentence.
        done, total: finished and planned steps; total 0 means not yet known.
        resumed: steps that were done before this job started.
        started: None before it runs.
        planned: when its total became known.
        last_step: when a step was last finished.
        predicted_seconds: of all steps, from a trial; None without a prediction.
        ended: None while it runs.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    resumed: int = 0
    started: float | None = None
    planned: float = 0.0
    last_step: float = 0.0
    predicted_seconds: float | None = None
    ended: float | None = None

    def elapsed(self, now: float) -> float:
        """Seconds since it started, up to its end; 0 before."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def remaining(self, now: float) -> float | None:
        """Return the remaining seconds; None while nothing is known.

        A prediction from a trial counts like one finished step in ten of them, so the figure does not jump when the
        first, often slowest, step is done.
        """
        if self.ended is not None:
            return 0.0
        measured = self.done - self.resumed
        if not self.total or (not measured and self.predicted_seconds is None):
            return None
        trusted = 0.1 * self.total if self.predicted_seconds is not None else 0.0
        predicted_step = (self.predicted_seconds or 0.0) / self.total
        spent = max(0.0, self.last_step - self.planned)
        step_seconds = (spent + trusted * predicted_step) / (measured + trusted)
        return max(0.0, step_seconds * (self.total - self.done) - (now - self.last_step))
