"""Interface of metrics: terms of each image, the change with an interval from their sums, and words.

A metric compares the compressed model with the uncompressed one on the same images. Its moments are sums over images
in float64, so those of batches, chunks and shards add up (:meth:`Metric.merge`). For most metrics they are
(n, Σ baseline, Σ d, Σ d², Σ d³), with d the worsening of one image (> 0 means worse).

Nothing here imports torch or scipy at load time: records, pages and the command line read the facts of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.bounds import upper_bound_of_share, upper_bound_of_sums
from senseapp.metrics.intervals import Interval, mean_interval, proportion_interval
from senseapp.metrics.predictions import Predictions, precise

if TYPE_CHECKING:
    from torch import Tensor

Moments = Sequence[float]

NOTABLE_SHARE = 0.01
"""One point: of right answers, of unchanged ones, and of divergences that are said in answers."""
SIGNIFICANCE = 0.05
"""Of every test, and one less the confidence of every interval and bound, unless a person asks for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDrop:
    """What one class loses: its ``index``, the images it occurs in, the drop as a share, and its interval."""

    index: int
    num_images: int
    drop: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """One metric before and after, as a paired difference over the same images.

    Attributes:
        baseline, value: of the uncompressed and of the compressed model, as fractions where they are shown in percent;
            the baseline of SQNR is infinite.
        delta: > 0 means worse, for every metric; for SQNR the noise-to-signal power ratio.
        ci_low, ci_high: 95 % interval of ``delta``; NaN where it is unknown (imported figures).
        num_samples: images measured; 0 where unknown.
        moments: sums over images, or the records of each; see :meth:`Metric.merge`.
    """

    metric: str
    baseline: float
    value: float
    delta: float
    ci_low: float
    ci_high: float
    num_samples: int
    moments: tuple[float, ...] = ()

    @property
    def has_interval(self) -> bool:
        """Whether the interval of ``delta`` is known."""
        return not (math.isnan(self.ci_low) or math.isnan(self.ci_high))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. A new one is in a file of its own, with ``of_images`` or :meth:`terms`, and a line in ``METRICS``.

    Attributes:
        of_images: the function that :meth:`terms` calls.
        name: in settings, files and on the command line.
        label, help: the name people see, in everyday words, and one plain sentence.
        change_title: what ``delta`` is called; above zero is worse, for every metric.
        value_unit: of ``baseline`` and ``value``; ``%`` means that they are fractions, shown as percent.
        change_unit: of ``delta``; ``points`` for fractions, which are shown as percentage points.
        notable: the largest tolerable ``delta`` of a layer; of a whole compressed model ``notable_of_all``, if set.
        task: whose outputs it speaks of; empty for those of any task.
        needs_labels: whether it judges the model by labels; the others compare with the uncompressed model alone.
        min_classes: with fewer, every model does perfectly.
        primary: whether people judge a model by it; those that need no labels stand in where there are none.
        divergence: whether it sees the smallest change of the output and adds up over layers: what ranks layers on
            few images, what schedules are solved in, and what the quick scan estimates.
        additive: whether value and drop differ by the baseline, so that the interval of one is that of the other.
        axis_title, value_title: of the axes of a drop, and of the metric itself; empty for ``change_title`` and label.
        proof_only: whether it is measured of whole schedules and files alone: it moves too little, or takes too much
            to store, for each layer and level.
        counted: what a share is of: ``answers`` or ``labels``, each right or as before; empty where it counts nothing.
        unchanged: what those that are as before do.
        finding: what is said of a layer behind its name, with ``{}`` for a drop as text.
        kept: what can be done beside a saving, with ``{}`` for the metric as text; empty for label and value.
        least_loss, most_loss: ends of the range of one image's loss; infinite where there is none.
        resampled: whether its interval and its bound resample the images, and so take up to a minute.
        term, term_change, term_unit: what experts call it, ``delta`` and their unit, where that differs from everyday
            words; see :attr:`in_terms`.
        as_answers: of a divergence, pairs of ``delta`` and the share that is said in its place, as of changed answers.
    """

    name: str
    of_images: Callable[[Any, Any, Any], tuple[Tensor, ...]] | None = None
    label: str
    change_title: str
    help: str
    value_unit: str = ""
    change_unit: str = ""
    notable: float
    notable_of_all: float | None = None
    higher_is_better: bool = True
    task: str = ""
    needs_labels: bool = False
    min_classes: int = 1
    primary: bool = False
    divergence: bool = False
    additive: bool = True
    axis_title: str = ""
    value_title: str = ""
    proof_only: bool = False
    counted: str = ""
    unchanged: str = "stay"
    finding: str = " loses {}"
    kept: str = ""
    least_loss: float = -math.inf
    most_loss: float = math.inf
    resampled: bool = False
    term: str = ""
    term_change: str = ""
    term_unit: str = ""
    as_answers: tuple[tuple[float, float], ...] = ()

    @property
    def tolerable(self) -> float:
        """The largest ``delta`` of a whole compressed model that is tolerable by default."""
        return self.notable if self.notable_of_all is None else self.notable_of_all

    # ---- measurement

    def terms(self, baseline_output: Any, output: Any, targets: Any) -> tuple[Tensor, ...]:
        """Return the terms to sum over images, (N,) each, float64: of most metrics :func:`powers` of the worsening.

        Outputs are predictions of the metric's task: of most a float64 tensor, images first. ``targets`` are the labels
        of the images; None only where ``needs_labels`` is false.
        """
        assert self.of_images is not None  # else this method is overridden
        return self.of_images(baseline_output, output, targets)

    def check(self, baseline_output: Any, output: Any, targets: Any) -> None:
        """Raise InvalidInput for outputs and targets that :meth:`terms` has no meaning for."""
        before, after = (tuple(getattr(each, "shape", (len(each),))) for each in (baseline_output, output))
        if before != after:
            raise InvalidInput(
                f"Outputs must be alike before and after compression; got {before} before and {after} after."
            )
        if self.needs_labels and targets is None:
            raise InvalidInput(f"The metric {self.name} needs labelled images. Choose one that needs no labels.")
        if self.needs_labels and len(targets) != len(output):
            raise InvalidInput(f"{len(output)} images need as many labels, got {len(targets)}.")

    def moments(self, baseline_output: Predictions, output: Predictions, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the sum of each of :meth:`terms` over a batch, in float64."""
        self.check(baseline_output, output, targets)
        terms = self.terms(precise(baseline_output), precise(output), targets)
        return (float(len(output)), *(float(term.sum()) for term in terms))

    def merge(self, first: Moments, second: Moments) -> tuple[float, ...]:
        """Return the moments of two disjoint sets of images together; counts merge exactly."""
        return tuple(a + b for a, b in zip(first, second, strict=True))

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of ``delta``: that of a mean, or of a share where each image loses all or nothing."""
        if self._loses_whole_images(moments):
            return proportion_interval(round(moments[2]), int(moments[0]), confidence)
        sums = moments[2], moments[3], moments[4]
        return mean_interval(int(moments[0]), sums, confidence, low=self.least_loss, high=self.most_loss)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return what ``delta`` is at most on new images with this one-sided confidence, from 0.75.

        Where the loss of one image has a range, it is the bound of a mean, or of a share where each image loses all or
        nothing. Elsewhere, unless a metric knows better, it is the upper end of the two-sided interval with twice the
        error; of shares with one more image on which all is lost, and at least what images without any change leave
        open. NaN where the interval is unknown.
        """
        count = int(moments[0])
        if self._loses_whole_images(moments):
            return upper_bound_of_share(round(moments[2]), count, confidence)
        if math.isfinite(self.least_loss) and math.isfinite(self.most_loss):
            sums = moments[2], moments[3]
            return upper_bound_of_sums(count, sums, self.least_loss, self.most_loss, confidence)
        high = self.interval(moments, 2 * confidence - 1)[1]
        if not self.is_share or math.isnan(high):
            return high
        return min(1.0, max((count * high + 1) / (count + 1), upper_bound_of_share(0, count, confidence)))

    def _loses_whole_images(self, moments: Moments) -> bool:
        """Return whether the loss of each image is 0 or 1, as its sum and that of its squares say."""
        return (self.least_loss, self.most_loss) == (0, 1) and moments[2] == moments[3]

    def change(self, moments: Moments, confidence: float = 0.95) -> MetricChange:
        """Return the change and its interval of nominal coverage ``confidence`` for the sums of :meth:`moments`.

        An image on which the worsening is not finite makes delta infinite, and its interval the single point inf:
        with any such image the expected damage has no bound. A baseline that is not finite makes delta undefined (nan).
        No images, or a confidence outside 0.5 to 1, raise InvalidInput.
        """
        low, high = self.interval(moments, confidence)  # first, as it refuses an empty set of images
        baseline, value, delta = self.estimate(moments)
        return MetricChange(
            metric=self.name,
            baseline=baseline,
            value=value,
            delta=delta,
            ci_low=low,
            ci_high=high,
            num_samples=int(moments[0]),
            moments=tuple(moments),
        )

    def estimate(self, moments: Moments) -> tuple[float, float, float]:
        """Return baseline, value and delta."""
        value = moments[1] + (-1 if self.higher_is_better else 1) * moments[2]
        return moments[1] / moments[0], value / moments[0], moments[2] / moments[0]

    # ---- layers together

    def recorded_size(self, num_outputs: int) -> int:
        """Return how many numbers :meth:`recorded` has for each image; 0 where layers together are not predicted."""
        return 0

    def recorded(self, baseline_output: Any, output: Any) -> Tensor:
        """Return the part of each image's ``output`` that is stored to predict layers together, (N, K), float32.

        Changes of it are taken to add up over layers.
        """
        raise NotImplementedError

    def together(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return the worsening, (..., N), of images that differ from what is ``recorded``, (N, K), by (..., N, K).

        The model gives ``num_outputs`` numbers for each image, of which K may tell only some.
        """
        raise NotImplementedError

    def changed_answers(
        self, recorded: NDArray[np.float64], changes: NDArray[np.float64], num_outputs: int
    ) -> NDArray[np.float64]:
        """Return the share of an image's answers, (..., N), that such changes make others; see :meth:`together`."""
        raise NotImplementedError

    # ---- what can be measured and shown

    def obstacle(self, *, has_labels: bool, num_classes: int) -> str:
        """Return why it cannot be measured, to follow "it needs"; empty where it can."""
        if self.needs_labels and not has_labels:
            return "labels, and there are none"
        return f"at least {self.min_classes} classes" if num_classes < self.min_classes else ""

    def unchanged_upper_end(self, num_images: int) -> float:
        """Return the upper end of the 95 % interval of ``delta`` if no answer has changed; 0 where none are counted."""
        return self.interval((num_images, 0, 0, 0, 0), 1 - SIGNIFICANCE)[1] if self.counted else 0.0

    def largest_estimate(self, num_classes: int) -> float:
        """Return the largest estimate worth an axis; beyond it an estimate says no more than that all is lost."""
        return math.inf

    # ---- words

    @property
    def in_terms(self) -> Metric:
        """The same metric with the terms of the field in place of everyday words."""
        if not self.term:
            return self
        return replace(
            self,
            label=self.term,
            change_title=self.term_change or self.term,
            axis_title="",
            value_title="",
            term="",
            as_answers=(),
            value_unit=self.term_unit or self.value_unit,
            change_unit=self.term_unit or self.change_unit,
        )

    @property
    def is_everyday(self) -> bool:
        """Whether it is offered without the switch *Expert*: what people judge by, and the harm that ranks layers."""
        return self.primary or self.divergence

    @property
    def is_share(self) -> bool:
        """Whether it is a share of images, shown in percent and points."""
        return self.value_unit == "%" and not self.divergence

    @property
    def factor(self) -> float:
        """Shown units for one unit of ``value`` and ``delta``: 100 for shares."""
        return 100.0 if self.value_unit == "%" else 1.0

    def shown(self, delta: Any) -> Any:
        """Return one or more drops in the unit of axes: in points, or in answers of 100 by :attr:`as_answers`.

        Beyond the last pair, answers grow in proportion: a bar longer than another for a larger drop.
        """
        if not self.as_answers:
            return self.factor * delta
        deltas, shares = np.transpose(self.as_answers)
        return 100 * np.minimum(1.0, np.interp(delta, deltas, shares) * np.maximum(1.0, delta / deltas[-1]))

    @property
    def digits(self) -> int:
        """Decimals in text."""
        return 1 if self.is_share else 3

    @property
    def axis(self) -> str:
        """Title of the axis that a drop is drawn on, with its unit."""
        if self.as_answers:  # which says its unit
            return self.axis_title
        if self.divergence and self.axis_title and not self.change_unit:  # without a unit that anybody knows
            return f"{self.axis_title} (up to {self.notable:g} hardly shows)"
        return _with_unit(self.axis_title or self.change_title, self.change_unit)

    @property
    def value_axis(self) -> str:
        """Title of the axis that the metric itself is drawn on, with its unit."""
        return _with_unit(self.value_title or self.label, self.value_unit)

    @property
    def change_inside(self) -> str:
        """Name of a drop inside a sentence; abbreviations keep their capitals."""
        title = self.change_title
        return title if title[:2].isupper() else title[0].lower() + title[1:]

    def change_text(self, delta: float) -> str:
        """Return a drop as text, above zero for the worse: ``6.4 points``, ``< 0.001 nats``, ``−0.3 points``."""
        if self.as_answers:
            return f"about {self._of_hundred(delta)} {self.change_unit}".replace("about over", "over").replace(
                "about <", "under"
            )
        return f"{number_text(self.factor * delta, digits=self.digits)} {self.change_unit}".strip()

    def shown_text(self, number: float) -> str:
        """Return a drop in the unit of :meth:`shown` as text."""
        if not self.as_answers:
            return self.change_text(number / self.factor)
        text = number_text(number, digits=1).removesuffix(".0")
        return f"about {text} {self.change_unit}".replace("about <", "under")

    def limit_text(self, delta: float) -> str:
        """Return a drop that somebody allows, as exactly as it was set: ``1 point``, ``0.25 points``, ``0.02``."""
        if self.as_answers:
            return f"{number_text(self.shown(delta), digits=1).removesuffix('.0')} {self.change_unit}"
        number = f"{self.factor * delta:.3g}"
        return f"{number} {self.change_unit.removesuffix('s') if number == '1' else self.change_unit}".strip()

    def interval_text(self, low: float, high: float) -> str:
        """Return an interval in the unit of :meth:`change_text`: ``7.4 to 8.6``."""
        if self.as_answers:
            return " to ".join(map(self._of_hundred, (low, high)))
        return " to ".join(number_text(self.factor * end, digits=self.digits) for end in (low, high))

    def in_answers(self, known: tuple[tuple[float, float], ...], counted: str) -> Metric:
        """Return this divergence as how many of 100 ``counted`` ones change with it, by the ``known`` pairs.

        One of 100 is what is notable, in every run.
        """
        deltas, shares = np.transpose(known)
        return replace(
            self,
            notable=float(np.interp(NOTABLE_SHARE, shares, deltas)) * max(1.0, NOTABLE_SHARE / shares[-1]),
            label=f"Changed {counted}, about",
            change_title=f"Changed {counted}",
            axis_title=f"Of 100 {counted}, about so many change",
            finding=" changes {}",
            help=f"How many of 100 {counted} change where outputs move as far as here, read from this run's "
            "measurements, or expected of its outputs while few are there; the 95 % interval is that of the distance, "
            "on the same scale.",
            change_unit=f"of 100 {counted}",
            as_answers=known,
        )

    def _of_hundred(self, delta: float) -> str:
        """Return how many of 100 answers change by :attr:`as_answers`; ``over 41.7`` beyond the last."""
        if not math.isfinite(delta):
            return number_text(delta, digits=1)
        deltas, shares = ([pair[part] for pair in self.as_answers] for part in range(2))
        text = number_text(100 * float(np.interp(delta, deltas, shares)), digits=1).removesuffix(".0")
        return f"over {text}" if delta > deltas[-1] else text

    def value_text(self, value: float) -> str:
        """Return the metric itself as text: ``97.8 %``, ``0.081 nats``."""
        return f"{number_text(self.factor * value, digits=self.digits)} {self.value_unit}".strip()

    def kept_text(self, change: MetricChange) -> str:
        """Return the remaining quality of a compressed model in words: ``keep 97.4 % of the answers right``."""
        return (self.kept or f"have {{}} of {self.label}").format(self.value_text(change.value))


def powers(baseline: Tensor, worsening: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of a mean and its interval, (N,) each: the baseline, and the worsening to the third power."""
    return baseline, worsening, worsening**2, worsening**3


def kl_terms(before: Tensor, after: Tensor) -> Tensor:
    """Return p (ln p − ln q), of log-probabilities ``before``, ln p, and ``after``, ln q: terms of a divergence."""
    probability = before.exp()
    # a class that the original rules out adds nothing, whatever the compressed model says of it
    return (probability * (before - after)).masked_fill(probability == 0, 0.0)


def number_text(value: float, *, digits: int) -> str:
    """Return ``value`` with at most so many decimals and a true minus sign; what only rounds to zero says so.

    What has no value, such as the precision of a class without an object, is ``unknown``.

    >>> [number_text(value, digits=3) for value in (0.0, 0.0004, -0.0004, -0.25, 133.0)]
    ['0', '< 0.001', '> −0.001', '−0.250', '133']
    """
    if value == 0:
        return "0"
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if round(value, digits) == 0:
        return f"< {10.0**-digits:.{digits}f}" if value > 0 else f"> −{10.0**-digits:.{digits}f}"
    # Most decimals of numbers below an end; larger ones are whole.
    decimals = min(digits, next((most for end, most in ((10.0, 3), (99.95, 1)) if abs(value) < end), 0))
    return f"{value:.{decimals}f}".replace("-", "−")


def _with_unit(title: str, unit: str) -> str:
    return f"{title} ({unit})" if unit else title
