"""Bases of metrics: of one row of numbers per image, (N, outputs), or of one record per image.

Metrics of records are over all images together and no mean over images, such as average precision. Losses that are not
a number count as damage without bound.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import AnswerDrop, Metric, Moments, powers
from senseapp.metrics.bounds import upper_bound_of_share
from senseapp.metrics.intervals import Interval, ResampledDrop, image_counts
from senseapp.metrics.predictions import Predictions

if TYPE_CHECKING:
    from torch import Tensor


Record = Sequence[float]
"""What one image adds, as numbers."""
_Value = TypeVar("_Value", "float", "NDArray[np.float64]")


@dataclass(frozen=True, kw_only=True)
class RecordMetric(Metric, ABC):
    """A metric that is computed from one record for each image; the records of shards follow each other.

    Moments are (N, then for each image the length and the numbers of its record before, and those of its record after).
    """

    resampled: bool = True

    @abstractmethod
    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        """Return the record of image ``index`` of ``predictions``, whose labels are ``targets``."""

    @abstractmethod
    def values_of(self, records: Sequence[Record], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the metric for each row of ``counts``, (draws, N): how often each image comes."""

    def value_of(self, records: Sequence[Record]) -> float:
        """Return the metric of the images of ``records``."""
        return float(self.values_of(records, np.ones((1, len(records))))[0])

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

    def nothing_lost(self, before: Sequence[Record], after: Sequence[Record]) -> bool:
        """Return whether nothing is lost on any image; unless a metric knows better, whether nothing changed."""
        return list(before) == list(after)

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the bootstrap's interval."""
        return self.interval_of(_resampled(self, tuple(moments)), confidence)

    def interval_of(self, drop: ResampledDrop, confidence: float) -> Interval:
        """Return the interval of a drop that was resampled; of a share, nothing is gained on what the original finds.

        Where nothing was lost on any image, draws say nothing of images that lose all: the upper end of a share is at
        least that of a share of images of which none was lost. Where nothing changed at all, the same holds of gains.
        """
        low, high = drop.interval(confidence)
        if not self.is_share:
            return low, high
        unseen = upper_bound_of_share(0, drop.number, confidence)
        if low == high:
            low, high = -unseen, unseen
        elif drop.nothing_lost:
            high = max(high, unseen)
        return max(-1.0 if self.needs_labels else 0.0, low), min(1.0, high)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return the higher of two: the bootstrap's bound, and that of any metric from the end of its interval."""
        end = super().upper_bound(moments, confidence)
        return max(end, _resampled(self, tuple(moments)).upper_bound(confidence)) if self.is_share else end

    def _worsening(self, before: _Value, after: _Value) -> _Value:
        return before - after if self.higher_is_better else after - before


class ClassValues(NamedTuple):
    """A metric of one class: the images that hold it, and the value of each draw, (draws,); NaN where it has none."""

    images: int
    values: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ClassMeanMetric(RecordMetric):
    """A metric of all images together that is a mean over the classes that occur in them."""

    @abstractmethod
    def class_values(self, records: Sequence[Record], counts: NDArray[np.float64]) -> dict[int, ClassValues]:
        """Return the metric of each class for each row of ``counts``, (draws, N): how often each image comes."""

    def values_of(self, records: Sequence[Record], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean over classes for each row of ``counts``; NaN where no class occurs."""
        values = [found.values for found in self.class_values(records, counts).values()]
        each = np.array(values).reshape(-1, len(counts))  # (classes, draws)
        sums, number = np.nansum(each, axis=0), (~np.isnan(each)).sum(axis=0)
        means: NDArray[np.float64] = np.divide(sums, number, out=np.full(len(counts), np.nan), where=number > 0)
        return means

    def of_classes(self, moments: Moments, confidence: float = 0.95) -> tuple[AnswerDrop, ...]:
        """Return what each class that occurs loses, with an interval of its own."""
        sides, found = sides_of(moments), []
        counts, worst = image_counts(len(sides[0]))
        before, after = (self.class_values(side, counts) for side in sides)
        for index in sorted(before.keys() & after.keys()):
            images, values = before[index]
            drop = ResampledDrop.of(self._worsening(values, after[index].values), worst, len(sides[0]))
            if images:
                low, high = self.interval_of(replace(drop, number=images), confidence)
                found.append(AnswerDrop(index=index, num_images=images, drop=drop.estimate, low=low, high=high))
        return tuple(found)


@lru_cache(maxsize=2)  # for an interval and bounds of several confidences; moments can be large
def _resampled(metric: RecordMetric, moments: tuple[float, ...]) -> ResampledDrop:
    before, after = sides_of(moments)
    if not before:
        raise InvalidInput("An interval needs at least one image.")
    counts, worst = image_counts(len(before))
    drops = metric._worsening(metric.values_of(before, counts), metric.values_of(after, counts))
    return replace(ResampledDrop.of(drops, worst, len(before)), nothing_lost=metric.nothing_lost(before, after))


def sides_of(moments: Moments) -> tuple[list[Record], list[Record]]:
    """Return the records before and after."""
    numbers = iter(moments[1:])
    records: list[Record] = [tuple(itertools.islice(numbers, int(length))) for length in numbers]
    return records[::2], records[1::2]


# What metrics have in common that are a share of something, and of an image's answers that stay; below, divergences.
SHARE: Mapping[str, Any] = {"value_unit": "%", "change_unit": "points", "notable": 0.01}
UNCHANGED: Mapping[str, Any] = {**SHARE, "change_unit": "%", "primary": True, "least_loss": 0.0, "most_loss": 1.0}
HARM: Mapping[str, Any] = {
    "label": "Harm",
    "change_title": "Harm",
    "term_unit": "nats",
    "higher_is_better": False,
    "divergence": True,
    "finding": ", harm {}",
    "least_loss": 0.0,
}
SMOOTHED = 0.003
"""Share of a recorded probability that is spread evenly: those next to 0 would dwarf all others in logarithms."""


def unbounded(values: Tensor) -> Tensor:
    """Read a result that is not a number as damage without bound."""
    return values.masked_fill(values.isnan(), math.inf)


def of_rise(before: Tensor, after: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of each image's rise in loss, (N,); NaN where the original's loss is not finite."""
    return powers(before, (unbounded(after) - before).masked_fill(~before.isfinite(), math.nan))


def of_divergence(values: Tensor, undefined: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the terms of each image's divergence, (N,); NaN where the original's outputs leave it ``undefined``."""
    divergence = unbounded(values).clamp_min(0)  # rounding can leave -1e-17
    if undefined is not None:
        divergence = divergence.masked_fill(undefined, math.nan)
    return powers(divergence.new_zeros(divergence.shape), divergence)


def of_lost_share(values: Tensor) -> tuple[Tensor, ...]:
    """Return the terms of the share that each image loses, (N,), of all that the original has."""
    return powers(values.new_ones(values.shape), values)


@dataclass(frozen=True, kw_only=True)
class RowMetric(Metric):
    """A metric of one row of numbers per image; subclasses say what these are called and what targets must be."""

    rows: ClassVar[str]
    columns: ClassVar[str]

    def check(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> None:
        """Refuse what is not one row per image, or targets that ``check_targets`` refuses."""
        if output.ndim != 2 or baseline_output.shape != output.shape:
            raise InvalidInput(
                f"{self.rows} must be (images, {self.columns}), alike before and after compression; got "
                f"{tuple(baseline_output.shape)} before and {tuple(output.shape)} after."
            )
        super().check(baseline_output, output, targets)
        if self.needs_labels and targets is not None:
            self.check_targets(targets, *output.shape)

    def recorded_size(self, num_outputs: int) -> int:
        """Return how many outputs are kept apart to predict layers together: of divergences at most 10."""
        return min(num_outputs, 10) if self.divergence else 0

    @staticmethod
    def check_targets(targets: Tensor, num_images: int, num_outputs: int) -> None:
        """Raise InvalidInput for targets that do not belong to the outputs."""
