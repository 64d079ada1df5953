"""Base of metrics of one row of numbers per image, (N, outputs), and losses that are not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from senseapp.core.errors import InvalidInput
from senseapp.metrics.base import Metric, powers

if TYPE_CHECKING:
    from torch import Tensor

SHARE: Mapping[str, Any] = {"value_unit": "%", "change_unit": "points", "notable": 0.01}
"""What metrics have in common that are a share of something."""
UNCHANGED: Mapping[str, Any] = {**SHARE, "change_unit": "%", "primary": True, "least_loss": 0.0, "most_loss": 1.0}
"""What metrics have in common that are the share of an image's answers that stay."""
HARM: Mapping[str, Any] = {
    "label": "Harm",
    "change_title": "Harm",
    "term_unit": "nats",
    "higher_is_better": False,
    "divergence": True,
    "finding": ", harm {}",
    "least_loss": 0.0,
}
"""What divergences of distributions have in common."""
SMOOTHED = 0.003
"""Share of a recorded probability that is spread evenly: those next to 0 would dwarf all others in logarithms."""


def unbounded(values: Tensor) -> Tensor:
    """Read a result that is not a number as damage without bound."""
    return values.masked_fill(values.isnan(), math.inf)


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
        """Refuse what is not one row per image, or targets that :meth:`check_targets` refuses."""
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

    def check_targets(self, targets: Tensor, num_images: int, num_outputs: int) -> None:
        """Raise InvalidInput for targets that do not belong to the outputs."""
        raise NotImplementedError
