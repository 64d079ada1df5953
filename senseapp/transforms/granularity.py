"""Which weights are zeroed together, and in which order the units of a layer go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.spec.compression import SparsityGranularity
from senseapp.transforms.layout import COLUMN, DEPTH, INPUT, OUTPUT, ROW

__all__ = ["GRANULARITIES", "Granularity", "num_zeroed", "zeroing_order"]

# What k in floor(k) may lose to binary fractions: 0.29 of 100 is 28.999999999999996.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """A partition of a weight in the form (G, O/G, I/G, D, H, W) of :class:`WeightLayout` into equal units.

    Attributes:
        unit: what one unit is called.
        axes: axes that one unit spans whole; along the others, each index is another unit.
        block_size: if above 0, this many consecutive units along the input axis compete with each other only.
    """

    unit: str
    axes: tuple[int, ...] = ()
    block_size: int = 0

    def units_shape(self, shape: torch.Size) -> torch.Size:
        """Return the split weight's ``shape`` with length 1 along the axes that a unit spans."""
        return torch.Size(1 if axis in self.axes else size for axis, size in enumerate(shape))

    def unit_scores(self, scores: Tensor) -> Tensor:
        """Average ``scores``, one per weight (G, O/G, I/G, D, H, W), over each unit."""
        return scores.mean(dim=self.axes, keepdim=True) if self.axes else scores

    def obstacle(self, shape: torch.Size) -> str:
        """Say why a split weight of ``shape`` cannot be zeroed unit by unit; empty if it can."""
        if self.block_size and shape[INPUT] % self.block_size:
            return (
                f"{self.unit} sparsity takes weights in fours along the input axis, which must be divisible by four; "
                f"here each output reads {shape[INPUT]} input channel{'s' if shape[INPUT] > 1 else ''}."
            )
        if self.units_shape(shape).numel() == 1:
            return f"The weight is a single {self.unit}, and zeroing it would remove the layer."
        return ""

    def contests(self, unit_scores: Tensor, *, per_output: bool) -> Tensor:
        """Arrange unit numbers as (contests, competitors).

        Units compete within their block; else, if ``per_output``, with the units of the same output channel where
        units lie inside one; else with all units of the layer.
        """
        numbers = torch.arange(unit_scores.numel(), device=unit_scores.device).view(unit_scores.shape)
        if self.block_size:
            return numbers.movedim(INPUT, -1).reshape(-1, self.block_size)
        if per_output and OUTPUT not in self.axes and INPUT not in self.axes:
            return numbers.flatten(0, OUTPUT).flatten(1)
        return numbers.view(1, -1)


GRANULARITIES: Mapping[SparsityGranularity, Granularity] = {
    "weight": Granularity(unit="weight"),
    "kernel": Granularity(unit="kernel", axes=(DEPTH, ROW, COLUMN)),
    "filter": Granularity(unit="filter", axes=(INPUT, DEPTH, ROW, COLUMN)),
    "channel": Granularity(unit="channel", axes=(OUTPUT, DEPTH, ROW, COLUMN)),
    "row": Granularity(unit="row", axes=(COLUMN,)),
    "column": Granularity(unit="column", axes=(ROW,)),
    "2:4": Granularity(unit="2:4", block_size=4),
}


def num_zeroed(level: float, num_units: int) -> int:
    """Return floor(``level`` · ``num_units``), unhurt by binary fractions.

    >>> num_zeroed(0.29, 100)
    29
    """
    return math.floor(level * num_units + _ROUNDING)


def zeroing_order(scores: Tensor, contests: Tensor) -> Tensor:
    """Return unit numbers in the order in which they go, whatever the level.

    Units go by their rank inside their contest, and among equal ranks by score: each contest loses the same number
    of units, but for one. So any level zeroes an exact number of units, a higher level zeroes all that a lower one
    did, and blocks of four lose two each at one half. Ties go by position.

    Args:
        scores: importance of each unit, any shape.
        contests: unit numbers, (contests, competitors); each number once.
    """
    flat = scores.flatten()
    by_score = flat.argsort(stable=True)
    if len(contests) == 1:
        return by_score
    places = flat[contests].argsort(dim=1, stable=True)  # (contests, competitors): competitors, worst first
    ranks = torch.empty_like(by_score)
    ranks[contests.gather(1, places)] = torch.arange(contests.shape[1], device=flat.device)
    return by_score[ranks[by_score].argsort(stable=True)]
