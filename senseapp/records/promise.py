"""A promised loss: which files lose at most so much on new images with a given certainty, or why none does.

A file keeps a promise where the upper confidence bound of its loss on held-out images is within it. The files of a run
are tested on the same images, in the order in which they were made, each with the share of the error that
:class:`~senseapp.metrics.bounds.TestSequence` leaves it. Alternatives that held-out images refused while a file was
made count as tests that failed. Where no file passes, none is offered, and a sentence says what would be needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import plural
from senseapp.metrics import METRICS, Metric, MetricChange, number_text
from senseapp.metrics.base import SIGNIFICANCE
from senseapp.metrics.bounds import TestSequence, images_needed, upper_bound_of_share
from senseapp.records.measurement import change_in

if TYPE_CHECKING:
    from senseapp.records.candidate import Candidate

CONFIDENCE = 1 - SIGNIFICANCE
"""Certainty of bounds that are shown with figures."""
_LEAST_CONFIDENCE = 0.75  # three times of four: less would be no promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The largest permitted loss on new images like the held-out ones, as a fraction, with a one-sided certainty.

    The metric is one that is a share; empty for the one that people judge a file by.
    """

    most: float
    metric: str = ""
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        if not 0 < self.most < 1:
            raise InvalidSpec(f"A promised loss is above 0 and below 1, as a fraction, got {self.most}.")
        if not _LEAST_CONFIDENCE <= self.confidence < 1:
            raise InvalidSpec(f"The certainty is from {_LEAST_CONFIDENCE} to below 1, got {self.confidence}.")
        if self.metric:
            check_promisable(self.metric)

    def text(self, metric: str = "top1") -> str:
        """Return it behind "lose", of a share such as ``metric``: ``at most 1 point, with 95 % certainty``."""
        return f"at most {METRICS[self.metric or metric].limit_text(self.most)}, with {self.certainty}"

    @property
    def certainty(self) -> str:
        """``95 % certainty``."""
        return certainty_text(self.confidence)


def check_promisable(metric: str) -> None:
    """Raise InvalidSpec for a metric without a worst value, of which no number of images bounds the mean."""
    if not METRICS.named(metric).is_share:
        shares = ", ".join(name for name, each in METRICS.items() if each.is_share)
        raise InvalidSpec(f"{metric} has no largest value, so nothing can be promised of it. Choose one of {shares}.")


def certainty_text(confidence: float) -> str:
    """Return ``95 % certainty``."""
    return f"{100 * confidence:g} % certainty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a file, the last of so many ``tried``, keeps a promise: by its ``bound`` with the ``error`` of its test.

    The bound is infinite where the loss is unknown: ``change`` is None where that was not measured on held-out images.
    """

    file: str
    change: MetricChange | None
    bound: float
    error: float
    holds: bool
    tried: int

    @property
    def is_known(self) -> bool:
        """Whether held-out images bound the loss."""
        return self.change is not None and not math.isnan(self.bound)


def verdicts(candidates: Sequence[Candidate], promise: Promise) -> dict[str, Verdict]:
    """Return by file which of ``candidates``, in the order in which they were made, keep ``promise``."""
    return _tested(candidates, promise)[0]


def sequence_after(candidates: Sequence[Candidate], promise: Promise) -> TestSequence:
    """Return the tests that ``candidates`` were, to which those of further files are added."""
    return _tested(candidates, promise)[1]


def kept(candidates: Sequence[Candidate], promise: Promise) -> tuple[Candidate, ...]:
    """Return the candidates that keep ``promise``."""
    found = verdicts(candidates, promise)
    return tuple(each for each in candidates if found[each.file].holds)


def _tested(candidates: Sequence[Candidate], promise: Promise) -> tuple[dict[str, Verdict], TestSequence]:
    tests = TestSequence(error=1 - promise.confidence)
    found: dict[str, Verdict] = {}
    for place, each in enumerate(candidates):
        weights = each.reconstruction, each.schedule
        same = [other for other in candidates[:place] if (other.reconstruction, other.schedule) == weights]
        if not same:
            for _ in range(each.tried - 1):
                tests.add(passes=False)
        plain = next((other for other in same if not other.runs), None)
        if plain is not None and not each.runs:  # as they are and packed: one test
            found[each.file] = replace(found[plain.file], file=each.file)
        else:
            metric = promise.metric or each.metric
            change = change_in(each.figures.changes, metric) if each.held_out else None
            bound = None if change is None else each.upper_bound(metric, tests.next_error)
            found[each.file] = verdict_of(change, promise, tests, file=each.file, bound=bound)
    return found, tests


def verdict_of(
    change: MetricChange | None, promise: Promise, tests: TestSequence, *, file: str = "", bound: float | None = None
) -> Verdict:
    """Test the loss on held-out images, None where unmeasured; ``bound`` is that of the next test, if known."""
    error = tests.next_error
    if change is None or not change.moments or not METRICS[change.metric].is_share:
        change, bound = None, math.inf
    elif bound is None:
        bound = METRICS[change.metric].upper_bound(change.moments, 1 - error)
    holds = bound <= promise.most
    tests.add(passes=holds)
    return Verdict(file=file, change=change, bound=bound, error=error, holds=holds, tried=tests.done)


def shortfall(candidates: Sequence[Candidate], promise: Promise) -> str:
    """Return why no candidate keeps ``promise``, what can be promised and what would be needed; empty if one does."""
    found = verdicts(candidates, promise)
    if any(each.holds for each in found.values()):
        return ""
    known = [each for each in candidates if found[each.file].is_known]
    if not known and not any(each.held_out for each in candidates):
        return too_few(0, promise)
    if not known:
        return "Nothing can be promised of these files: they have no figure that is a share of answers or objects."
    best = min(known, key=lambda each: found[each.file].bound)
    images, bound, needed = _words(found[best.file], promise)
    return (
        f"No file is shown to lose {promise.text(best.metric)}. What can be promised with these {images} is at most "
        f"{bound}: {best.made_of}. {needed}"
    )


def refusal(verdict: Verdict, promise: Promise) -> str:
    """Return why a file does not keep ``promise``, and what it takes; empty where it does."""
    if verdict.holds:
        return ""
    if not verdict.is_known:
        return f"Nothing can be promised of it without unseen images: it takes {needed_text(promise)}."
    images, bound, needed = _words(verdict, promise)
    return f"It is not shown to lose {promise.text()}: {images} bound its loss by {bound}. {needed}"


def needed_text(promise: Promise) -> str:
    """Return how many held-out images the promise takes at the least: where nothing is lost on any of them."""
    least = images_needed(promise.most, 1 - TestSequence(error=1 - promise.confidence).next_error)
    assert least is not None  # without any change some number is enough
    return f"at least {plural(least, 'unseen image')}"


def too_few(images: int, promise: Promise) -> str:
    """Return that so many held-out images promise less, even of a file that loses nothing; empty where they do not."""
    if not images:
        return f"Nothing can be promised without unseen images, and this run has none: it takes {needed_text(promise)}."
    best = upper_bound_of_share(0, images, 1 - TestSequence(error=1 - promise.confidence).next_error)
    if best <= promise.most:
        return ""
    return (
        f"To lose {promise.text()}, takes {needed_text(promise)}. On the {plural(images, 'unseen image')} of this run "
        "even a file that loses none is, as the first one tested, only shown to lose at most "
        f"{100 * math.ceil(1000 * best) / 1000:.1f} points."
    )


def _words(verdict: Verdict, promise: Promise) -> tuple[str, str, str]:
    """Return the images of a known verdict, its bound, and a sentence on what the promise takes."""
    change = verdict.change
    assert change is not None
    lost = METRICS[change.metric].change_text(change.delta)
    needed = images_needed(promise.most, 1 - verdict.error, rate=max(0.0, change.delta))
    images = plural(max(needed or 0, change.num_samples + 1), "unseen image")
    takes = f"If it goes on losing {lost}, it takes about {images}."
    if needed is None:
        takes = f"It lost {lost} on them: more images would not help, a milder file would."
    elif change.delta <= 0:
        takes = f"It takes {images} without a loss."
    return plural(change.num_samples, "unseen image"), rounded_up(METRICS[change.metric], verdict.bound), takes


def rounded_up(view: Metric, bound: float) -> str:
    """Return a bound as text, rounded up in its last digit."""
    step = view.factor * 10.0**view.digits
    return view.change_text(math.ceil(bound * step - 1e-9) / step if math.isfinite(bound) else bound)


def largest_loss(change: MetricChange, bound: float) -> str:
    """Return the ``bound`` of a loss in a cell of a table, ``at most 2.7 points``; empty where it is unknown."""
    return "" if math.isnan(bound) else f"at most {rounded_up(METRICS[change.metric], bound)}"


def images_text(count: int, *, held_out: bool) -> str:
    """Return ``112 unseen images``, or that what is measured was also fitted to or chosen by them."""
    return plural(count, "unseen image") if held_out else f"{plural(count, 'image')} also used to make or choose it"


def bound_text(change: MetricChange, bound: float, *, tried: int = 1) -> str:
    """Return the bound of a loss, of one of so many ``tried``, as a sentence; the measured loss stands beside it.

    Of answers: ``At most 4.1 % of answers change, with 95 % certainty; 3 of 200 did.``
    """
    view = METRICS[change.metric]
    if math.isnan(bound):
        return ""
    sure, count = certainty_text(CONFIDENCE) + f", counting {tried} tried" * (tried > 1), change.num_samples
    if view.counted and not view.needs_labels:
        share = number_text(math.ceil(1000 * bound - 1e-9) / 10, digits=1)
        whole = view.counted == "answers"
        did = f"{round(change.delta * count)} of {count} did" if whole else f"{view.change_text(change.delta)} did"
        return f"At most {share} % of {view.counted} change, with {sure}; {did}."
    return f"On new images: {view.change_inside} at most {rounded_up(view, bound)}, with {sure}."
