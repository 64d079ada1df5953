"""Metrics over all images together that are no mean over images, such as average precision."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Interval, Metric, Moments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from senseapp.metrics.jackknife import Drop
    from senseapp.metrics.predictions import Predictions

_DRAWS = 400  # of a bootstrap: a quantile of 5 % rests on twenty of them; more take proportionally longer
_SEED = 0  # so that the same records give the same bounds on every machine

Record = Sequence[float]
"""What one image adds, as numbers."""
_Value = TypeVar("_Value", "float", "NDArray[np.float64]")


@dataclass(frozen=True, kw_only=True)
class RecordMetric(Metric):
    """A metric that is computed from one record for each image; the records of shards follow each other.

    Moments are (N, then for each image the length and the numbers of its record before, and those of its record after).

    Attributes:
        draws: of the bootstrap behind :meth:`upper_bound`.
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

    def smallest_loss(self, records: Sequence[Record], value: float) -> float:
        """Return what the smallest loss would take from ``value``, the metric of ``records``: an image's share."""
        return value / len(records) if self.is_share else 0.0

    def shares(self, records: Sequence[Record], value: float) -> NDArray[np.float64]:
        """Return what each image would take from ``value`` if all were lost there, (N,)."""
        import numpy as np

        return np.full(len(records), value / len(records) if self.is_share else 0.0)

    def losing(self, before: Sequence[Record], after: Sequence[Record]) -> NDArray[np.bool_]:
        """Return whether something was lost on each image, (N,): whether the metric is worse there."""
        import numpy as np

        pairs = zip(before, after, strict=True)
        return np.array([self._worsening(self.value_of([old]), self.value_of([new])) > 0 for old, new in pairs])

    def drop(self, before: Sequence[Record], after: Sequence[Record]) -> Drop:
        """Return what images, whose records come before and after compression, say about the drop."""
        from senseapp.metrics.jackknife import Drop, jackknife_weights

        value, left_out = self.value_of(before), jackknife_weights(len(before))
        smallest, estimate = self.smallest_loss(before, value or 1.0), self._worsening(value, self.value_of(after))
        return Drop(
            estimate=estimate,
            smooth=estimate,
            without=self._worsening(self.values_of(before, left_out), self.values_of(after, left_out)),
            smallest=(smallest, smallest**2, smallest**3),
            shares=self.shares(before, value or 1.0),
            losing=self.losing(before, after),
            number=len(before),
        )

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of :func:`~senseapp.metrics.jackknife.jackknife_interval`, as if one more loss were seen.

        Without that loss, images on which none was seen would exclude all of them: where 2 of 90 objects are lost on
        average, one set of images in seven has none lost. It is as large a share of an image as was lost on others,
        since losses of one image come together; few of those say little about that, none nothing. With labels, there
        may be one more gain as well. Samples for which the metric has no value are left out.
        """
        if not moments[0]:
            raise InvalidInput("An interval needs at least one image.")
        return self.interval_of(self.drop(*sides_of(moments)), confidence)

    def interval_of(self, drop: Drop, confidence: float) -> Interval:
        """Return the interval of a drop; nothing lies below 0 where the original model is the truth."""
        from senseapp.metrics.jackknife import jackknife_interval

        low, high = jackknife_interval(drop, confidence, gains=self.needs_labels)
        if not self.is_share or math.isnan(low):
            return low, high
        return max(-1.0 if self.needs_labels else 0.0, low), min(1.0, high)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return a percentile of a paired bootstrap over the images and one more, on which all is lost.

        Without that image, images that all stay as they are would promise that no other one changes. Of a share of
        images it is the usual bound, up to whole numbers: Clopper and Pearson's is the same percentile of Dirichlet in
        place of multinomial weights.

        Source: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable, Mathematical Methods of Statistics 14, for means; Hesterberg (2015), What teachers
        should know about the bootstrap, section 4.3, for the percentile.
        """
        if not self.is_share:
            return super().upper_bound(moments, confidence)
        losses = _losses_with_the_worst(self, tuple(moments))
        return percentiles(losses, int(moments[0]), 2 * confidence - 1, method="higher")[1]

    def _worsening(self, before: _Value, after: _Value) -> _Value:
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
