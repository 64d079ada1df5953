"""What a piece of background work is handed: a way to report, and the point where cancel reaches it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class JobCancelled(Exception):
    """Raised inside the work when somebody has asked it to stop."""


class JobControl:
    """Reports progress; each report is also where a cancel takes effect, by raising :class:`JobCancelled`.

    Args:
        stop: set when the work should end.
        update: takes named changes of the job's :class:`~senseapp.jobs.progress.Progress`.
        clock: seconds that never move back.
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
        """Say what is being done now; an empty sentence says nothing new."""
        if sentence:
            self._update(phase=sentence)
        self.check()

    def plan(self, *, total: int, done: int = 0, predicted_seconds: float | None = None) -> None:
        """Say how many steps there are, how many an earlier attempt finished, and what a trial predicts for all."""
        self._done = done
        now = self._clock()
        self._update(
            total=total, done=done, resumed=done, planned=now, last_step=now, predicted_seconds=predicted_seconds
        )
        self.check()

    def step(self, sentence: str = "") -> None:
        """Count one more step as finished."""
        self._done += 1
        changes = {"phase": sentence} if sentence else {}
        self._update(done=self._done, last_step=self._clock(), **changes)
        self.check()
