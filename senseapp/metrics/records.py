"""Metrics of all images together that are no mean over images, such as average precision."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Interval, Metric, Moments

if TYPE_CHECKING:
    from torch import Tensor

    from senseapp.metrics.predictions import Predictions

_RESAMPLES = 400
_SEED = 0

Record = Sequence[float]
"""What one image adds, as numbers."""


@dataclass(frozen=True, kw_only=True)
class RecordMetric(Metric):
    """A metric that is computed from one record for each image; the records of shards follow each other.

    Moments are (N, then for each image the length and the numbers of its record before, and those of its record after).
    """

    @abstractmethod
    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        """Return the record of image ``index`` of ``predictions``, whose labels are ``targets``."""

    @abstractmethod
    def value_of(self, records: Sequence[Record]) -> float:
        """Return the metric of the images of ``records``, of which one may come several times."""

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
        before, after = (self.value_of(side) for side in _sides(moments))
        return before, after, self._worsening(before, after)

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the percentile interval of a paired bootstrap over images, with a fixed seed.

        Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13.
        """
        import numpy as np

        if not moments[0]:
            raise InvalidInput("An interval needs at least one image.")
        before, after = _sides(moments)
        draws = np.random.default_rng(_SEED).integers(0, len(before), size=(_RESAMPLES, len(before)))
        deltas = [
            self._worsening(self.value_of([before[i] for i in drawn]), self.value_of([after[i] for i in drawn]))
            for drawn in draws.tolist()
        ]
        low, high = np.quantile(deltas, [(1 - confidence) / 2, (1 + confidence) / 2])
        return float(low), float(high)

    def _worsening(self, before: float, after: float) -> float:
        return before - after if self.higher_is_better else after - before


def _sides(moments: Moments) -> tuple[list[Record], list[Record]]:
    """Return the records before and after."""
    records = list(_records(iter(moments[1:])))
    return records[::2], records[1::2]


def _records(numbers: Iterator[float]) -> Iterator[Record]:
    for length in numbers:
        yield tuple(itertools.islice(numbers, int(length)))
