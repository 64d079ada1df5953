"""Progress of a job: one bar over all its steps, what happens now, the time that is left, and how it is stopped."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from senseapp.core.steps import SEPARATOR, StepTitle

_UNKNOWN_SECONDS = 20.0  # of work without a plan
_PRIOR_SHARE = 0.05  # of the planned time: weight of the plan's own pace beside what was seen
_OVERDUE = 0.5  # of the time spent on a step, that it still takes at least, as far as is known
_EARLIER = 0.3  # weight of a finished step in the pace, beside the next one
_TRUSTED = 0.1  # of a step: once so much is done, its own pace counts as much as that of the plan
_COUNT = re.compile(r"(?:about )?(\d+) of (?:about |at most )?(\d+)\b.*")


class JobCancelled(Exception):
    """Raised inside the work after a request to stop it."""


class Unfinished(Exception):
    """Raised at the end of work that is done, but for something that failed, which the sentence says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A planned step: how reports call it, and its predicted seconds."""

    title: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar over the steps of a job, at one moment; times are of one monotonic clock.

    At any time the bar moves at (1 - fraction) / (seconds left). A longer estimate of the time left slows it down; it
    never moves back, never stands still, and is at 1 only at the end of the job. The seconds left follow from the plan
    and from the pace of the steps so far, by which load and wrong predictions are corrected.

    Attributes:
        steps: the plan; empty for work whose steps are not known.
        index: of the current step.
        begun: when the current step began.
        share, share_at: part of the current step that is done, and when this was reported.
        finished: steps that ended, with the seconds that each took.
        fraction: of the bar, at the time ``looked``.
        doing: what happens now, in everyday words.
        detail: what exactly happens now.
    """

    begun: float
    looked: float
    steps: tuple[PlannedStep, ...] = ()
    index: int = 0
    share: float = 0.0
    share_at: float = 0.0
    finished: tuple[tuple[PlannedStep, float], ...] = ()
    fraction: float = 0.0
    doing: str = "Starting"
    detail: str = ""

    @classmethod
    def started(cls, now: float, steps: Sequence[PlannedStep] = ()) -> Bar:
        """Return the bar of a job that starts ``now``."""
        return cls(begun=now, looked=now, steps=tuple(steps))

    @property
    def step(self) -> PlannedStep:
        """The current step."""
        return self.steps[self.index] if self.steps else PlannedStep(title="", seconds=_UNKNOWN_SECONDS)

    def advanced(self, now: float) -> Bar:
        """Return the bar at a later time without news."""
        left, passed = self.seconds_left(self.looked), max(0.0, now - self.looked)
        moved = (1 - self.fraction) * -math.expm1(-passed / left)
        return replace(self, fraction=min(self.fraction + moved, math.nextafter(1, 0)), looked=max(now, self.looked))

    def told(self, sentence: str, now: float) -> Bar:
        """Return the bar after a report of progress, see :mod:`senseapp.core.steps`; a planned step may begin."""
        title, *rest = sentence.split(SEPARATOR)
        bar = self._at(title, now)
        if bar.steps and title != bar.step.title:  # a detail of the current step
            title, rest = bar.step.title, [title, *rest]
        counted = _COUNT.fullmatch(rest[0]) if rest else None
        if counted and bar.steps:
            bar = bar.counted(int(counted[1]) / max(1, int(counted[2])), now)
        # A detail's own count starts again with the next detail, so only that of the step stands beside its title.
        goes_on = bar.doing.startswith(f"{title}: ")
        doing = f"{title}: {rest.pop(0)}" if counted else bar.doing if goes_on else title
        return replace(bar, doing=doing, detail=SEPARATOR.join(rest))

    def counted(self, share: float, now: float) -> Bar:
        """Return the bar with this ``share`` of the current step done."""
        return replace(self.advanced(now), share=min(max(share, 0.0), 1.0), share_at=now)

    def planned(self, steps: Sequence[PlannedStep], now: float) -> Bar:
        """Return the bar with another plan, in which the current step has the same title, if it is in there."""
        places = [place for place, each in enumerate(steps) if each.title == self.step.title]
        nearest = min(places, key=lambda place: abs(place - self.index), default=0)
        return replace(self.advanced(now), steps=tuple(steps), index=nearest)

    def seconds_left(self, now: float) -> float:
        """Return the seconds that the job still takes, as far as is known; above 0."""
        pace, spent = self._pace(now), now - self.begun
        expected = pace * self.step.seconds
        if self.share:
            seen = (self.share_at - self.begun) / self.share  # the whole step at the pace of its own parts
            expected += self.share / (self.share + _TRUSTED) * (seen - expected)
            expected = self.share_at - self.begun + (1 - self.share) * expected
        current = max(expected - spent, _OVERDUE * (spent - (self.share_at - self.begun if self.share else 0)), 1e-3)
        return current + pace * sum(each.seconds for each in self.steps[self.index + 1 :])

    def _pace(self, now: float) -> float:
        """Return the seconds that a planned second takes, by the steps that ended and by one that is overdue."""
        planned = taken = 0.0
        for step, seconds in self.finished:
            planned, taken = _EARLIER * planned + step.seconds, _EARLIER * taken + seconds
        prior = _PRIOR_SHARE * sum(each.seconds for each in self.steps) + 1e-3
        planned, taken = planned + prior, taken + prior
        spent, share = (self.share_at - self.begun, self.share) if self.share else (now - self.begun, 1.0)
        if self.share or spent > self.step.seconds * taken / planned:
            planned, taken = planned + share * self.step.seconds, taken + spent
        return max(taken / planned, 1e-3)

    def _at(self, title: str, now: float) -> Bar:
        """Return the bar in the next step called ``title``, if that begins now."""
        bar = self.advanced(now)
        later = range(bar.index + 1, len(bar.steps))
        place = next((place for place in later if bar.steps[place].title == title), None)
        if title == bar.step.title or place is None:
            return bar
        ended = (bar.step, now - bar.begun)
        return replace(bar, index=place, begun=now, share=0.0, share_at=now, finished=(*bar.finished, ended))


class JobControl:
    """Progress of a job, which its work reports; each report raises :class:`JobCancelled` once the job should end.

    Args:
        lock: held while anything here is changed; readers hold it too.
        clock: monotonic seconds.

    Attributes:
        stop: set when the work should end.
        bar: of the whole job.
        times_known: whether the plan says how long the work takes; else it only moves the bar.
        done, total: finished and planned measurements; total 0 means not yet known.
        started: None before it runs.
        ended: None while it runs.
    """

    def __init__(self, lock: AbstractContextManager[Any], clock: Callable[[], float]) -> None:
        self._lock, self._clock = lock, clock
        self.stop = threading.Event()
        self.bar = Bar(begun=clock(), looked=clock(), doing="Waiting for its turn")
        self.times_known = True
        self.done = self.total = self._resumed = 0
        self.started: float | None = None
        self.ended: float | None = None

    def start(self) -> None:
        """Begin to count the time."""
        self.started = self._clock()
        self.bar = Bar.started(self.started)

    def elapsed(self, now: float) -> float:
        """Return the seconds since it started, up to its end; 0 before."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def remaining(self, now: float) -> float | None:
        """Return the remaining seconds; None before it runs and without a plan that says how long it takes."""
        if self.ended is not None:
            return 0.0
        known = self.started is not None and self.bar.steps and self.times_known
        return self.bar.seconds_left(now) if known else None

    def seconds_of_steps(self) -> dict[str, float]:
        """Return the seconds that each step of the plan took so far, by title."""
        found = dict[str, float]()
        for step, seconds in (*self.bar.finished, (self.bar.step, self._clock() - self.bar.begun)):
            found[step.title] = found.get(step.title, 0.0) + seconds
        return found

    def check(self) -> None:
        """Raise :class:`JobCancelled` if the work should end."""
        if self.stop.is_set():
            raise JobCancelled

    def phase(self, sentence: str) -> None:
        """Report the current step; an empty sentence reports nothing new."""
        now = self._clock()
        with self._lock:
            self.bar = self.bar.told(sentence, now) if sentence else self.bar.advanced(now)
        self.check()

    def plan(self, steps: Sequence[PlannedStep], *, times_known: bool = True) -> None:
        """Report the steps of the job with their predicted seconds, or better predictions of them."""
        with self._lock:
            self.bar, self.times_known = self.bar.planned(steps, self._clock()), times_known
        self.check()

    def measurements(self, *, total: int, done: int = 0) -> None:
        """Report the number of measurements, and how many an earlier attempt finished."""
        with self._lock:
            self.total, self.done, self._resumed = total, done, done
        self.check()

    def measured(self, detail: str) -> None:
        """Count one more finished measurement."""
        now = self._clock()
        with self._lock:
            self.done += 1
            sentence = SEPARATOR.join((StepTitle.LAYERS, f"{self.done} of {self.total}", detail))
            share = (self.done - self._resumed) / max(1, self.total - self._resumed)
            self.bar = self.bar.told(sentence, now).counted(share, now)
        self.check()
