"""Base of metrics of one row of numbers per image, (N, outputs), independent of their meaning."""

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


class DivergenceOfRows:
    """What divergences of rows share; to be named before the base class of a metric."""

    def interval(self, moments: Moments, confidence: float) -> Interval:
        """Return the interval of a mean that cannot be negative."""
        from senseapp.metrics.intervals import nonnegative_mean_interval

        return nonnegative_mean_interval(int(moments[0]), (moments[2], moments[3], moments[4]), confidence)

    def recorded_size(self, num_outputs: int) -> int:
        """Return how many outputs are told apart."""
        return min(num_outputs, MOST_RECORDED)
