"""Bases of metrics: of one row of numbers per image, (N, outputs), and of means with a known range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Interval, Metric, Moments

if TYPE_CHECKING:
    from torch import Tensor

MOST_RECORDED = 10
"""Outputs that are kept apart to predict layers together."""
SMOOTHED = 0.003
"""Share of a recorded probability that is spread evenly: those next to 0 would dwarf all others in logarithms."""


def unbounded(values: Tensor) -> Tensor:
    """Read a result that is not a number as damage without bound."""
    return values.masked_fill(values.isnan(), math.inf)


@dataclass(frozen=True, kw_only=True)
class RowMetric(Metric):
    """A metric of one row of numbers per image; subclasses say what these are called and what targets must be."""

    rows: ClassVar[str]
    columns: ClassVar[str]

    def check(self, baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> None:
        """Refuse what is not one row per image, or targets that :meth:`check_targets` refuses."""
        if output.ndim != 2 or baseline_output.shape != output.shape:
            raise InvalidInput(
                f"{self.rows} must be (images, {self.columns}), alike before and after compression; got "
                f"{tuple(baseline_output.shape)} before and {tuple(output.shape)} after."
            )
        super().check(baseline_output, output, targets)
        if self.needs_labels and targets is not None:
            self.check_targets(targets, *output.shape)

    def check_targets(self, targets: Tensor, num_images: int, num_outputs: int) -> None:
        """Raise InvalidInput for targets that do not belong to the outputs."""
        raise NotImplementedError


class NonnegativeMean:
    """A mean over images that cannot be negative; to be named before the base class of a metric."""

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of a mean that cannot be negative."""
        from senseapp.metrics.intervals import nonnegative_mean_interval

        return nonnegative_mean_interval(int(moments[0]), (moments[2], moments[3], moments[4]), confidence)


class DivergenceOfRows(NonnegativeMean):
    """A divergence of rows; to be named before the base class of a metric."""

    def recorded_size(self, num_outputs: int) -> int:
        """Return how many outputs are told apart."""
        return min(num_outputs, MOST_RECORDED)


class MeanOfShares(NonnegativeMean):
    """A mean over images of the share of each that is lost; to be named before the base class of a metric."""

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of a mean of shares, cut off at 0 and 1; that of no change as of whole images."""
        from senseapp.metrics.intervals import proportion_interval

        if moments[2] == 0:
            return proportion_interval(0, int(moments[0]), confidence)
        low, high = super().interval(moments, confidence)
        return low, min(1.0, high)

    def upper_bound(self, moments: Moments, confidence: float = 0.95) -> float:
        """Return the bound of a mean of shares of each image."""
        from senseapp.metrics.bounds import upper_bound_of_sums

        return upper_bound_of_sums(int(moments[0]), (moments[2], moments[3], moments[4]), 0, 1, confidence)
