"""Metrics of all images together that are no mean over images, such as average precision."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Interval, Metric, Moments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from senseapp.metrics.predictions import Predictions

_DRAWS = 400
_SEED = 0
_ROUNDING = 1e-12  # a deviation of draws below it is float64 cancellation, not spread

Record = Sequence[float]
"""What one image adds, as numbers."""


@dataclass(frozen=True, kw_only=True)
class RecordMetric(Metric):
    """A metric that is computed from one record for each image; the records of shards follow each other.

    Moments are (N, then for each image the length and the numbers of its record before, and those of its record after).

    Attributes:
        draws: of the bootstrap.
    """

    draws: int = _DRAWS
    resampled: bool = True

    @abstractmethod
    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        """Return the record of image ``index`` of ``predictions``, whose labels are ``targets``."""

    def value_of(self, records: Sequence[Record]) -> float:
        """Return the metric of the images of ``records``, of which one may come several times.

        Subclasses define this or :meth:`values_of`.
        """
        import numpy as np

        return float(self.values_of(records, np.ones((1, len(records))))[0])

    def values_of(self, records: Sequence[Record], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the metric for each row of ``counts``, (draws, N): how often each image comes."""
        import numpy as np

        drawn = (np.repeat(np.arange(len(records)), row).tolist() for row in counts.astype(int))
        return np.array([self.value_of([records[index] for index in row]) for row in drawn])

    def terms(self, baseline_output: Any, output: Any, targets: Any) -> tuple[Tensor, ...]:
        """Raise: there are no terms to sum."""
        raise NotImplementedError(f"{self.name} is no mean over images.")

    def moments(self, baseline_output: Predictions, output: Predictions, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the records of each, before and after."""
        self.check(baseline_output, output, targets)
        found = [float(len(output))]
        for index in range(len(output)):
            for predictions in (baseline_output, output):
                record = self.record(predictions, index, targets)
                found += [float(len(record)), *map(float, record)]
        return tuple(found)

    def merge(self, first: Moments, second: Moments) -> tuple[float, ...]:
        """Return the records of both sets of images, exactly."""
        return (first[0] + second[0], *first[1:], *second[1:])

    def estimate(self, moments: Moments) -> tuple[float, float, float]:
        """Return the metric before, after, and how much worse it is after."""
        before, after = (self.value_of(side) for side in sides_of(moments))
        return before, after, self._worsening(before, after)

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return Hall's interval from the spread and skewness of a paired bootstrap over images, with a fixed seed.

        Draws for which the metric has no value are left out. Percentiles of the draws would end too low where few
        images lose much: at a drop of 1 or 2 points in F1 on 30 images they hold the truth in 80 to 88 %.

        Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13; for the rest
        :func:`~senseapp.metrics.intervals.skewed_interval`.
        """
        import numpy as np

        if not moments[0]:
            raise InvalidInput("An interval needs at least one image.")
        before, after = sides_of(moments)
        drawn = np.concatenate([np.ones((1, len(before))), drawn_counts(len(before), self.draws)])
        deltas = self.values_of(before, drawn) - self.values_of(after, drawn)
        return self.interval_of(deltas * (1 if self.higher_is_better else -1), len(before), confidence)

    def interval_of(self, deltas: NDArray[np.float64], number: int, confidence: float) -> Interval:
        """Return the interval of a drop from its estimate and draws of ``number`` images, one after the other.

        Where no draw differs, images that change may only be missing: the interval is then that of no change of whole
        images, on both sides. Nothing lies below 0 where the original model is the truth.
        """
        low, high = _drawn_interval(deltas, number, confidence, is_share=self.is_share)
        if not self.is_share or math.isnan(low):
            return low, high
        return max(-1.0 if self.needs_labels else 0.0, low), min(1.0, high)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return a percentile of a paired bootstrap over the images and one more, on which all is lost.

        Without that image, images that all stay as they are would promise that no other one changes. Of a share of
        images it is the usual bound, up to whole numbers: Clopper and Pearson's is the same percentile of Dirichlet in
        place of multinomial weights.

        Source: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable, Mathematical Methods of Statistics 14, for means; Hesterberg (2015), as in
        :meth:`interval`, for the percentile.
        """
        if not self.is_share:
            return super().upper_bound(moments, confidence)
        losses = _losses_with_the_worst(self, tuple(moments))
        return percentiles(losses, int(moments[0]), 2 * confidence - 1, method="higher")[1]

    def _worsening(self, before: float, after: float) -> float:
        return before - after if self.higher_is_better else after - before


@lru_cache(maxsize=2)  # for bounds of several confidences; moments can be large
def _losses_with_the_worst(metric: RecordMetric, moments: tuple[float, ...]) -> NDArray[np.float64]:
    """Return what is lost in each draw of the images and one more, on which all is lost, (draws,)."""
    before, after = sides_of(moments)
    number = len(before)
    if not number:
        raise InvalidInput("A bound needs at least one image.")
    drawn = drawn_counts(number + 1, metric.draws)
    worst, counts = drawn[:, -1] / (number + 1), drawn[:, :-1]
    deltas = metric.values_of(before, counts) - metric.values_of(after, counts)
    losses: NDArray[np.float64] = (1 - worst) * deltas * (1 if metric.higher_is_better else -1) + worst
    return losses


def drawn_counts(number: int, draws: int) -> NDArray[np.float64]:
    """Return how often each of ``number`` images comes in each draw of a bootstrap, (draws, number)."""
    import numpy as np

    counts = np.random.default_rng(_SEED).multinomial(number, np.full(number, 1 / number), size=draws)
    return counts.astype(np.float64)


def _drawn_interval(deltas: NDArray[np.float64], number: int, confidence: float, *, is_share: bool) -> Interval:
    """Return the interval of a drop from its estimate, the first of ``deltas``, and draws of images, the others."""
    import numpy as np

    from senseapp.metrics.intervals import proportion_interval, skewed_interval

    estimate, drawn = float(deltas[0]), deltas[1:]
    known = drawn[np.isfinite(drawn)]
    if math.isnan(estimate) or not len(known):
        return math.nan, math.nan
    centred = known - known.mean()
    deviation = math.sqrt(float((centred**2).mean()))
    if number < 2 or deviation <= _ROUNDING:
        unseen = proportion_interval(0, number, confidence)[1] if is_share else 0.0
        return estimate - unseen, estimate + unseen
    return skewed_interval(estimate, deviation, float((centred**3).mean()) / deviation**3, number, confidence)


def percentiles(
    deltas: NDArray[np.float64], number: int, confidence: float, *, method: Literal["linear", "higher"] = "linear"
) -> Interval:
    """Return the expanded percentile interval of the finite ones of ``deltas``, from draws of ``number`` images.

    ``method`` says what lies between two draws: a mean of them, or the higher one.
    """
    import numpy as np

    known = deltas[np.isfinite(deltas)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, _expanded(number, confidence), method=method)
    return float(low), float(high)


def _expanded(number: int, confidence: float) -> tuple[float, float]:
    """Return the percentiles, as fractions, of an interval that is as wide as one of Student's t."""
    from scipy.special import ndtr, stdtrit

    if number < 2:
        return 0.0, 1.0
    quantile = float(stdtrit(number - 1, (1 + confidence) / 2)) * math.sqrt(number / (number - 1))
    tail = float(ndtr(-quantile))
    return tail, 1 - tail


def sides_of(moments: Moments) -> tuple[list[Record], list[Record]]:
    """Return the records before and after."""
    records = list(_records(iter(moments[1:])))
    return records[::2], records[1::2]


def _records(numbers: Iterator[float]) -> Iterator[Record]:
    for length in numbers:
        yield tuple(itertools.islice(numbers, int(length)))
