"""The decision of a run: which measured file to take for a goal, why, and what else is worth taking.

Pages, reports and commands take every recommendation from :func:`decision`. Its rules:

* Only files within the tolerance, or with a promise those shown to keep it, are recommended.
* A file that another one dominates beyond noise (:func:`dominates`) is not recommended.
* Of the others, the goal decides: fewest bytes, least time, or the strongest proven schedule. Differences in bytes or
  time that decide nothing leave it to the other one and the answers. Files that a runtime runs come before files of
  weights.
* The original is kept where no file within the tolerance is clearly smaller or faster.
* Losses are compared on the same images only. Of the files to take on each set of images, the goal decides.
* The reason says so where the images cannot show a loss as small as the tolerance, or the bound of a file is larger.

A file only gives way to files that lose no more, and the order of the others does not depend on the tolerance: a
stricter tolerance never gives a file that loses more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from senseapp.core.texts import plural
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET, target_of_file
from senseapp.metrics import METRICS, MetricChange
from senseapp.records.candidate import SAME_BYTES, SAME_TIME, Candidate, with_one_original
from senseapp.records.promise import Promise, largest_loss, verdicts
from senseapp.records.resolution import unseen_below
from senseapp.records.spec import Goal

Standing = Literal[
    "chosen",
    "alternative",
    "dominated",
    "no gain",
    "not faster",
    "loses too much",
    "not shown",
    "other images",
    "other target",
]
"""What a decision says of one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The file to take, and the reason.

    Attributes:
        choice: the recommended file; None to keep the original.
        reason: one sentence, true of all candidates.
        standings: of every file, by its name; alternatives are other files within the tolerance that are clearly
            smaller or faster than the original (for the goal ``faster``: faster) and that no other one dominates.
        goal, target: that were asked for.
        promise: to be kept; None where a loss is tolerated as measured.
        bounds: of the loss of every file on new images, by its name, with the certainty of the promise.
        tried: how many files and alternatives were tested for the promise, which the bounds count.
    """

    choice: Candidate | None
    reason: str
    standings: dict[str, Standing]
    goal: Goal
    target: str = USUAL_TARGET
    promise: Promise | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    tried: int = 0

    def loss(self, one: Candidate) -> MetricChange:
        """Return the loss of a file with its interval or, under a promise, from what was measured to its bound."""
        bound, delta = self.bounds.get(one.file, math.inf), one.loss.delta
        if self.promise is None:
            return one.loss
        return replace(one.loss, ci_low=delta, ci_high=bound if math.isfinite(bound) else delta)

    def loss_text(self, one: Candidate) -> str:
        """Return the interval of a file's answers: ``93 to 98``; under a promise the bound of its loss."""
        if self.promise is None:
            return one.interval_text
        bound = self.bounds.get(one.file, math.inf)
        return largest_loss(one.loss, bound) if math.isfinite(bound) else "no bound"

    def line(self, one: Candidate) -> str:
        """Return the figures of a file in one line, its loss in the form of :meth:`loss_text`."""
        sure = f" lost, with {self.promise.certainty}" if self.promise is not None else ""
        return one.line(self.loss_text(one) + sure)

    @property
    def headline(self) -> str:
        """The answer in one line: the figures of the chosen file or schedule, or that there is none."""
        found = self.choice
        if found is None:
            return "No schedule to take" if self.goal == "targets" else "Keep the original"
        if self.goal != "targets":
            return self.line(found)
        saved = f"{100 * (1 - _bytes_left(found)):.0f} % of the weights' size"
        return f"Targets that save {saved} · {found.answers_text} ({self.loss_text(found)}; {found.measured_on})"

    @property
    def evidence(self) -> str:
        """What the figures of the headline were measured on; empty without a choice."""
        found = self.choice
        tested = f"all {self.tried} files and variants tested on these images"
        counted = f"The bounds of {tested} hold together for this promise: with another limit they differ."
        counted *= self.tried > 1
        if found is None:
            return ""
        if self.goal == "targets":
            return f"Answers measured with these targets in {found.title}. {counted}".strip()
        measured = target_of_file(found.runtime.name, self.target).measured if found.runs else ""
        return " ".join(filter(None, [f"{found.made_of}. Measured: this very file.", measured, counted]))

    @property
    def saved(self) -> float | None:
        """Share of the original's bytes that the chosen file saves; None where none is, or a schedule is."""
        found = self.choice
        if found is None or self.goal == "targets":
            return None
        return 1 - found.figures.file_bytes / found.original.file_bytes

    def offers(self, one: Candidate) -> bool:
        """Return whether a file is the choice or an alternative."""
        return self.standings.get(one.file) in ("chosen", "alternative")

    def compared(self, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """Return those of the ``candidates`` that were compared, for the target and on the same images; else all."""
        return tuple(one for one in candidates if not self.standings[one.file].startswith("other")) or tuple(candidates)


def decision(
    candidates: Sequence[Candidate],
    goal: Goal,
    tolerance: float,
    promise: Promise | None = None,
    target: str = USUAL_TARGET,
) -> Decision:
    """Return the file to take among the ``candidates`` of one run, in the order in which they were made.

    Args:
        candidates: with one metric that they are judged by.
        goal: ``targets`` asks for the strongest proven schedule; ``look`` is answered as ``smaller``.
        tolerance: largest loss in the unit of that metric, as measured.
        promise: to be kept instead of ``tolerance``.
        target: name of the target; files for the runtimes of others are not compared.
    """
    fits = TARGETS[target].runs
    files = with_one_original(one for one in candidates if not one.runs or fits(one.runtime.name))
    tests = {} if promise is None else verdicts(files, promise)
    within = tuple(one for one in files if (tests[one.file].holds if tests else one.loss.delta <= tolerance))

    def question(compared: tuple[Candidate, ...]) -> _Question:
        images = max((one.images for one in compared), default=0)
        return _Question(
            goal=goal,
            files=compared,
            within=tuple(one for one in within if one in compared),
            limit=_limit(compared, tolerance, promise),
            few=_too_few_images(compared[0].metric, images, tolerance) if compared and promise is None else "",
            promised=promise is not None,
        )

    # the number of images tells apart what was measured on others
    by_images = (tuple(one for one in files if one.images == each) for each in {one.images for one in files})
    sets = [each for each in map(question, by_images) if each.choice is not None]
    asked = min(sets, key=_Question.best_key, default=question(files))
    choice = asked.choice
    fitting = {one.file for one in files}
    standings: dict[str, Standing] = {
        **{one.file: "other images" if one.file in fitting else "other target" for one in candidates},
        **{one.file: asked.standing(one, choice) for one in asked.files},
    }
    reason = asked.why_none() if choice is None else asked.why(choice)
    may_lose_more = choice is not None and promise is None and not choice.bound <= tolerance
    if doubt := asked.few or "New images may lose more" * may_lose_more:
        is_claim = choice is not None and asked.limit in reason
        reason += f" That is not certain: {doubt[0].lower()}{doubt[1:]}." if is_claim else f" {doubt}."
    if apart := len(files) - len(asked.files):
        reason += (
            f" {plural(apart, 'file')} {'was' if apart == 1 else 'were'} measured on other images, and not compared."
        )
    return Decision(
        choice=choice,
        reason=reason,
        standings=standings,
        goal=goal,
        target=target,
        promise=promise,
        bounds={file: each.bound for file, each in tests.items()},
        tried=max((each.tried for each in tests.values()), default=0),
    )


def _limit(files: Sequence[Candidate], tolerance: float, promise: Promise | None) -> str:
    """Return the tolerance as a verb."""
    if promise is not None:
        return f"is shown to lose {promise.text(*(each.metric for each in files[:1]))}"
    return f"was measured to lose at most {METRICS[files[0].metric].limit_text(tolerance)}" if files else ""


def usual_decision(candidates: Sequence[Candidate], goal: Goal, target: str = USUAL_TARGET) -> Decision:
    """Return the decision within the loss that the metric of the files usually tolerates."""
    tolerance = METRICS[candidates[0].metric].tolerable if candidates else 0.0
    return decision(candidates, goal, tolerance, target=target)


def _too_few_images(metric: str, images: int, tolerance: float) -> str:
    """Return that losses within ``tolerance`` may go unseen on so many images; empty where they cannot.

    The smallest visible loss is the upper end of the interval of unchanged answers, rounded as intervals are shown.
    """
    least = round(METRICS[metric].unchanged_upper_end(max(1, images)), 3)
    return unseen_below(images, metric, least) if least > tolerance else ""


def dominates(one: Candidate, other: Candidate) -> bool:
    """Return whether ``one`` is clearly better in bytes, time or answers, and not worse in the others beyond noise.

    It loses no more, as measured on the same images. Files that a runtime runs and files of weights do not replace each
    other.
    """
    if one.file == other.file or one.runs != other.runs or one.images != other.images:
        return False
    if not one.loss.delta <= other.loss.delta:
        return False
    is_slower = _time(one) > _time(other) * (1 + SAME_TIME) and not _takes_as_long(one, other)
    if is_slower or _size(one) > _size(other) * (1 + SAME_BYTES):
        return False
    mine, theirs = one.figures.time_ratio, other.figures.time_ratio
    is_quicker = mine.high < theirs.low and mine.value < theirs.value * (1 - SAME_TIME)
    return is_quicker or _size(one) < _size(other) * (1 - SAME_BYTES) or one.loss.ci_high < other.loss.ci_low


def _is_better_schedule(one: Candidate, other: Candidate) -> bool:
    """Return whether the schedule of ``one`` saves about as much and loses clearly less."""
    if one.schedule is None or other.schedule is None or not one.loss.delta <= other.loss.delta:
        return False
    return _bytes_left(one) <= _bytes_left(other) * (1 + SAME_BYTES) and one.loss.ci_high < other.loss.ci_low


def pays(one: Candidate) -> bool:
    """Return whether a file is clearly smaller or faster than the original."""
    return one.is_smaller or one.is_faster


def _size(one: Candidate) -> float:
    return one.figures.file_bytes


def _time(one: Candidate) -> float:
    return one.figures.time_ratio.value


def _takes_as_long(one: Candidate, other: Candidate) -> bool:
    """Return whether the interval of each time holds the other time."""
    mine, theirs = one.figures.time_ratio, other.figures.time_ratio
    return mine.low <= theirs.value <= mine.high and theirs.low <= mine.value <= theirs.high


def _step(value: float, same: float) -> int:
    """Return the step of a value on a scale whose steps are a share ``same``; the last for what no file measures."""
    return round(math.log(value) / math.log1p(same)) if 0 < value < math.inf else sys.maxsize


def _bytes_left(one: Candidate) -> float:
    """Return the share of bytes that a schedule leaves."""
    return 1.0 if one.schedule is None else 1 - one.schedule.achieved.get("bytes", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What :func:`decision` is asked, and the files within the tolerance.

    ``limit`` is the tolerance as a verb: ``was measured to lose at most 1 point``; ``few`` says that the images cannot
    show it; ``promised`` whether it is to hold on new images.
    """

    goal: Goal
    files: tuple[Candidate, ...]
    within: tuple[Candidate, ...]
    limit: str
    few: str
    promised: bool

    @property
    def choice(self) -> Candidate | None:
        """The best file that no other within the tolerance beats; of those as small and as fast, what loses least."""
        better = _is_better_schedule if self.goal == "targets" else dominates
        undominated = (one for one in self.within if not any(better(other, one) for other in self.within))
        fitting = [one for one in undominated if self.rank(one) is not None]
        if not fitting or self.goal == "targets":
            return min(fitting, key=self._key, default=None)
        first = min(fitting, key=self._key)
        alike = [
            one
            for one in fitting
            if (self.rank(one), one.runs) == (self.rank(first), first.runs)
            and abs(_size(one) - _size(first)) <= SAME_BYTES * _size(first)
            and _takes_as_long(one, first)
        ]
        return min(alike, key=lambda one: (one.loss.delta, self._key(one)), default=first)

    def best_key(self) -> tuple[object, ...]:
        """Return the place of the choice, of which there is one, in the order of the goal; the least is the best."""
        assert self.choice is not None
        return self._key(self.choice)

    def _key(self, one: Candidate) -> tuple[object, ...]:
        if self.goal == "targets":
            return _bytes_left(one), one.form != "weights", one.loss.delta, one.file
        rank, size, time = self.rank(one), _step(_size(one), SAME_BYTES), _step(_time(one), SAME_TIME)
        first = (time, one.loss.delta) if self.goal == "faster" and rank == 0 else (size, time, one.loss.delta)
        return rank, not one.runs, *first, _size(one), one.file

    def rank(self, one: Candidate) -> int | None:
        """Return 0 for what the goal asks for, 1 for what is as good in it and otherwise better; None for others."""
        if self.goal == "targets":
            return None if one.schedule is None else 0
        if self.goal == "faster":
            return 0 if one.is_faster else 1 if one.is_smaller and (_time(one) <= 1 + SAME_TIME) else None
        as_small = _size(one) <= one.original.file_bytes * (1 + SAME_BYTES)
        return 0 if one.is_smaller else 1 if one.is_faster and as_small else None

    def standing(self, one: Candidate, choice: Candidate | None) -> Standing:
        """Return what is said of one of the files."""
        if choice is not None and one.file == choice.file:
            return "chosen"
        if one not in self.within:
            return "not shown" if self.promised else "loses too much"
        if not pays(one):
            return "no gain"
        if self.goal == "faster" and not one.is_faster and (choice is None or self.rank(choice) != self.rank(one)):
            return "not faster"
        return "dominated" if any(dominates(other, one) for other in self.within) else "alternative"

    def why(self, choice: Candidate) -> str:
        """Return the first of some sentences that is true; the last one is, as the others are dominated."""
        if self.rank(choice) == 1:
            what, gain = ("smaller", "is faster")
            if self.goal == "faster":
                what, gain = ("faster", "takes about as long and is smaller")
            if any(self.rank(one) == 0 for one in self.within):
                return f"It {gain}."
            return f"No file that {self.limit} is clearly {what}; this one {gain}."
        peers = [one for one in self.within if one.runs == choice.runs]
        what = f"file that runs and {self.limit}" if choice.runs else f"file of weights that {self.limit}"
        if self.goal == "targets":
            best, better, worse, axis, other = "strongest", "stronger", "", _bytes_left, _time
            peers = [one for one in self.within if one.schedule is not None]
            what = f"tested schedule that {self.limit}"
        elif self.goal == "faster":
            best, better, worse, axis, other = "fastest", "faster", "is larger", _time, _size
        else:
            best, better, worse, axis, other = "smallest", "smaller", "takes longer", _size, _time
        ahead = [one for one in peers if axis(one) < axis(choice)]
        if not ahead:
            return f"It is the {best} {what}."
        if self.goal != "targets":
            ahead = [one for one in ahead if self._is_clearly_ahead(one, choice)]
            if not ahead:
                least = f" ({100 * SAME_BYTES:.0f} % or more)" if better == "smaller" else ""
                return f"No other {what} is clearly {better}{least}."
            better = f"clearly {better}"
        if all(one.loss.delta > choice.loss.delta for one in ahead):
            return f"Every {better} {what} loses more."
        if worse and all(one.loss.delta > choice.loss.delta or other(one) > other(choice) for one in ahead):
            return f"Every {better} {what} {worse} or loses more."
        return f"Every {better} {what} has a clearly better one beside it."

    def _is_clearly_ahead(self, one: Candidate, choice: Candidate) -> bool:
        if self.goal == "faster":
            return one.figures.time_ratio.high < choice.figures.time_ratio.low
        return _size(one) < _size(choice) * (1 - SAME_BYTES)

    def why_none(self) -> str:
        """Return why no file is taken."""
        if not self.files:
            return "No file has been measured yet."
        if self.goal == "targets":
            if not any(one.schedule is not None for one in self.files):
                return "No schedule has been tested yet."
            other = min(filter(pays, self.within), key=lambda one: (_size(one), one.file), default=None)
            but = f"; a file without a schedule was: {other.made_of}" if other is not None else ""
            return f"No tested schedule {self.limit}{but}."
        if not any(map(pays, self.files)):
            return "No measured file is clearly smaller or faster."
        if not any(map(pays, self.within)):
            return f"No file that is clearly smaller or faster {self.limit}."
        if any(self.rank(one) is not None for one in self.within):
            return f"No file that {self.limit} is clearly better than the original in all that counts."
        if self.goal == "faster":
            return f"No file that {self.limit} is clearly faster; those that are smaller were measured to take longer."
        return f"No file that {self.limit} is clearly smaller; those that are faster are larger."
