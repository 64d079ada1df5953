"""How far a job is and how long it still takes, from the pace measured so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One moment of a job; times are of a clock that never moves back.

    Attributes:
        phase: one short sentence.
        done, total: steps finished and planned; total 0 means not yet known.
        resumed: steps that were done before this job started.
        started: when it started running; None before.
        planned: when its total became known.
        last_step: when a step was last finished.
        predicted_seconds: of all steps, from a trial; None if nobody predicted.
        ended: when it ended; None while it runs.
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
        """Seconds still to go; None while nothing is known.

        The pace is that of the steps finished so far. A prediction from a trial counts like one finished step in
        ten of them, so the figure does not jump when the first, often slowest, step is done.
        """
        if self.ended is not None:
            return 0.0
        measured = self.done - self.resumed
        if not self.total or (not measured and self.predicted_seconds is None):
            return None
        trusted = 0.1 * self.total if self.predicted_seconds is not None else 0.0
        predicted_pace = (self.predicted_seconds or 0.0) / self.total
        spent = max(0.0, self.last_step - self.planned)
        pace = (spent + trusted * predicted_pace) / (measured + trusted)
        return max(0.0, pace * (self.total - self.done) - (now - self.last_step))
