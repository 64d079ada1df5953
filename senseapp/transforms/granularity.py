"""Which weights are zeroed together, and with which others they compete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.sparsity import SparsityGranularity
from senseapp.transforms.layout import COLUMN, DEPTH, GROUP, INPUT, OUTPUT, ROW


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

    def arrange(self, unit_scores: Tensor, *, per_output: bool) -> Tensor:
        """Arrange the scores of units as (contests, competitors).

        Units compete within their block; else, if ``per_output``, with the units of the same output channel where
        units lie inside one; else with all units of the layer.
        """
        if self.block_size:
            return unit_scores.movedim(INPUT, -1).reshape(-1, self.block_size)
        if per_output and OUTPUT not in self.axes and INPUT not in self.axes:
            return unit_scores.flatten(0, OUTPUT).flatten(1)
        return unit_scores.reshape(1, -1)

    def arrange_back(self, arranged: Tensor, shape: torch.Size) -> Tensor:
        """Undo :meth:`arrange`: return one entry per unit, broadcastable to a split weight of ``shape``."""
        if self.block_size:
            *others, inputs = (shape[axis] for axis in (GROUP, OUTPUT, DEPTH, ROW, COLUMN, INPUT))
            return arranged.view(*others, inputs).movedim(-1, INPUT)
        return arranged.view(self.units_shape(shape))


GRANULARITIES: Mapping[SparsityGranularity, Granularity] = {
    "weight": Granularity(unit="weight"),
    "kernel": Granularity(unit="kernel", axes=(DEPTH, ROW, COLUMN)),
    "filter": Granularity(unit="filter", axes=(INPUT, DEPTH, ROW, COLUMN)),
    "channel": Granularity(unit="channel", axes=(OUTPUT, DEPTH, ROW, COLUMN)),
    "row": Granularity(unit="row", axes=(COLUMN,)),
    "column": Granularity(unit="column", axes=(ROW,)),
    "2:4": Granularity(unit="2:4", block_size=4),
}
