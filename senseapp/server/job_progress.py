"""Progress of a job: one bar over all its steps, what happens now, the time that is left, and how it is stopped."""

import math
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from senseapp.core.steps import SEPARATOR, StepTitle

_UNKNOWN_SECONDS = 120.0  # of work without a plan: one that comes later finds the bar near its start
_PRIOR_SHARE = 0.05  # of the planned time: weight of the plan's own pace beside what was seen
_OVERDUE = 0.5  # of the time spent on a step, that it still takes at least, as far as is known
_EARLIER = 0.3  # weight of a finished step in the pace, beside the next one
_CLEARLY_MORE = 1.1  # times the seconds that were said: less more is not said
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


class JobControl:
    """Progress of a job, which its work reports; each report raises :class:`JobCancelled` once the job should end.

    One bar stands for all steps. At any time it moves at (1 - fraction) / (seconds left). A longer estimate of the time
    left slows it down; it never moves back, never stands still, and is at 1 only at the end of the job. The seconds
    left follow from the plan and from the pace of the steps so far, by which load and wrong predictions are corrected.

    ``lock`` is held while anything here is changed; readers hold it too. ``clock`` returns monotonic seconds.

    Attributes:
        stop: set when the work should end.
        done, total: finished and planned measurements; total 0 means not yet known.
        started, ended: None before, and while, it runs.
        fraction: of the bar.
        doing, detail: what happens now, in everyday words, and exactly.
        share: part of the current step that is done.
    """

    def __init__(self, lock: AbstractContextManager[Any], clock: Callable[[], float]) -> None:
        self._lock, self._clock = lock, clock
        self.stop = threading.Event()
        self.done = self.total = self._resumed = 0
        self.started: float | None = None
        self.ended: float | None = None
        self.doing, self.detail = "Waiting for its turn", ""
        self.fraction = self.share = 0.0
        self._steps: tuple[PlannedStep, ...] = ()
        self._index, self._untimed = 0, ""
        self._begun = self._share_at = self._moved = clock()  # the step; when its share was reported; the bar
        self._finished: list[tuple[PlannedStep, float]] = []  # with the seconds that each took
        self._said = math.inf  # seconds left, when last asked

    @property
    def step(self) -> PlannedStep:
        """The current step."""
        return self._steps[self._index] if self._steps else PlannedStep(title="", seconds=_UNKNOWN_SECONDS)

    def start(self) -> None:
        """Begin to count the time."""
        self.started = self._begun = self._moved = self._clock()
        self.doing = "Starting"

    def elapsed(self, now: float) -> float:
        """Return the seconds since it started, up to its end; 0 before."""
        if self.started is None:
            return 0.0
        return max(0.0, (now if self.ended is None else self.ended) - self.started)

    def remaining(self, now: float) -> float | None:
        """Return the remaining seconds, which rise where clearly more are left; None before a plan or a start."""
        if self.ended is not None:
            return 0.0
        if self.started is None or not self._steps:
            return None
        left = self._left(now)
        if not self._said < left < _CLEARLY_MORE * self._said:
            self._said = left
        return self._said

    def seconds_of_steps(self) -> dict[str, float]:
        """Return the seconds that each step of the plan took so far, by title, without one that began before it."""
        found = dict[str, float]()
        for step, seconds in (*self._finished, (self.step, self._clock() - self._begun)):
            found[step.title] = found.get(step.title, 0.0) + seconds
        found.pop(self._untimed, None)
        return found

    def move(self) -> float:
        """Move the bar to where it is now, and return the time."""
        now = self._clock()
        if self.started is not None:
            passed = max(0.0, now - self._moved)
            self.fraction += (1 - self.fraction) * -math.expm1(-passed / self._left(self._moved))
            self.fraction, self._moved = min(self.fraction, math.nextafter(1, 0)), max(now, self._moved)
        return now

    def check(self) -> None:
        """Raise :class:`JobCancelled` if the work should end."""
        if self.stop.is_set():
            raise JobCancelled

    def phase(self, sentence: str) -> None:
        """Report progress, see :mod:`senseapp.core.steps`; an empty sentence reports nothing new."""
        with self._lock:
            now = self.move()
            if sentence:
                self._tell(sentence, now)
        self.check()

    def plan(self, steps: Sequence[PlannedStep], since: float = 0.0) -> None:
        """Report the steps of the job with their predicted seconds, or better predictions of them.

        The first step of a first plan began ``since`` seconds ago.
        """
        with self._lock:
            now = self.move()
            # Seconds before it, in which a process starts and a model loads, tell nothing of the pace.
            if not self._steps and now - self._begun > 1:
                self._begun = self._share_at = now - since
                self._untimed = steps[0].title if steps else ""
            places = [place for place, each in enumerate(steps) if each.title == self.step.title]
            self._index = min(places, key=lambda place: abs(place - self._index), default=0)
            self._steps = tuple(steps)
        self.check()

    def measurements(self, *, total: int, done: int = 0, is_resumed: bool = False) -> None:
        """Report the number of measurements, and how many are done, from where the bar of a resumed one goes on."""
        with self._lock:
            self.move()
            self.total, self.done, self._resumed = total, done, done
            if is_resumed and done:
                self.fraction = max(self.fraction, self._share_before(StepTitle.LAYERS, done / total))
        self.check()

    def measured(self, detail: str) -> None:
        """Count one more finished measurement."""
        with self._lock:
            now = self.move()
            self.done += 1
            self._tell(SEPARATOR.join((StepTitle.LAYERS, f"{self.done} of {self.total}", detail)), now)
            self.share, self._share_at = (self.done - self._resumed) / max(1, self.total - self._resumed), now
        self.check()

    def _tell(self, sentence: str, now: float) -> None:
        """Take note of a report, with which a planned step may begin."""
        title, *rest = sentence.split(SEPARATOR)
        later = range(self._index + 1, len(self._steps))
        place = next((place for place in later if self._steps[place].title == title), None)
        if title != self.step.title and place is not None:
            self._finished.append((self.step, now - self._begun))
            self._index, self._begun, self.share = place, now, 0.0
        elif self._steps and title != self.step.title:  # a detail of the current step
            title, rest = self.step.title, [title, *rest]
        counted = _COUNT.fullmatch(rest[0]) if rest else None
        if counted and self._steps:
            self.share, self._share_at = min(1.0, int(counted[1]) / max(1, int(counted[2]))), now
        # A detail's own count starts again with the next detail, so only that of the step stands beside its title.
        if counted:
            self.doing = f"{title}: {rest.pop(0)}"
        elif not self.doing.startswith(f"{title}: "):
            self.doing = title
        self.detail = SEPARATOR.join(rest)

    def _share_before(self, title: str, share: float) -> float:
        """Return the share of the planned seconds that lies before this ``share`` of the step ``title``."""
        seconds = [each.seconds for each in self._steps]
        place = next((place for place, each in enumerate(self._steps) if each.title == title), len(seconds))
        done = sum(seconds[:place]) + sum(share * each for each in seconds[place : place + 1])
        return done / (sum(seconds) or 1.0) if place < len(seconds) else 0.0

    def _left(self, now: float) -> float:
        """Return the seconds that the job still takes, as far as is known; above 0."""
        pace, spent = self._pace(now), now - self._begun
        expected = pace * self.step.seconds
        reported = self._share_at - self._begun if self.share else 0.0
        if self.share:  # the whole step at the pace of its own parts
            expected += self.share / (self.share + _TRUSTED) * (reported / self.share - expected)
            expected = reported + (1 - self.share) * expected
        current = max(expected - spent, _OVERDUE * (spent - reported), 1e-3)
        return current + pace * sum(each.seconds for each in self._steps[self._index + 1 :])

    def _pace(self, now: float) -> float:
        """Return the seconds that a planned second takes, by the steps that ended and by one that is overdue."""
        planned = taken = 0.0
        for step, seconds in self._finished:
            planned, taken = _EARLIER * planned + step.seconds, _EARLIER * taken + seconds
        prior = _PRIOR_SHARE * sum(each.seconds for each in self._steps) + 1e-3
        planned, taken = planned + prior, taken + prior
        spent, share = (self._share_at - self._begun, self.share) if self.share else (now - self._begun, 1.0)
        if self.share or spent > self.step.seconds * taken / planned:
            planned, taken = planned + share * self.step.seconds, taken + spent
        return max(taken / planned, 1e-3)
