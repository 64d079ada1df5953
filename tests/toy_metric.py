"""A metric from outside: everything that an engineer writes for a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from senseapp.metrics import ClassificationMetric, powers

if TYPE_CHECKING:
    from torch import Tensor


def drop_in_margin(baseline_output: Tensor, output: Tensor, targets: Tensor | None) -> tuple[Tensor, ...]:
    """Return the powers of each image's drop in the difference of the two highest scores."""
    before, after = (first_over_second(scores) for scores in (baseline_output, output))
    return powers(before, before - after)


def first_over_second(scores: Tensor) -> Tensor:
    """Return by how much the highest score exceeds the next, (N,)."""
    highest = scores.topk(2, dim=1).values
    return highest[:, 0] - highest[:, 1]


MARGIN = ClassificationMetric(
    of_images=drop_in_margin,
    name="margin",
    label="Score margin",
    change_title="Drop in margin",
    help="How far the first guess is ahead of the second. Needs no labels.",
    notable=0.05,
)
