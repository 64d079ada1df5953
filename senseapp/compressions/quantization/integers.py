"""A rounded weight as the integers and scales that it is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.base import WeightGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWeight:
    """A weight equal to ``(values - zero_point) * scale`` in float32.

    Attributes:
        values: int8, or float8_e4m3fn for weights in that format; the weight's shape.
        scale: float32; the weight's shape with 1 in place of each axis that a scale spans.
        zero_point: int8 (); weights are quantized symmetrically about 0.
    """

    values: Tensor
    scale: Tensor
    zero_point: Tensor

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor, grid: WeightGrid) -> IntegerWeight:
        """Return ``weight``, float32 and a product of numbers of ``grid`` and ``scale``, as these numbers."""
        numbers = grid.nearest(weight.detach() / scale)
        return cls(
            values=numbers.to(torch.int8 if grid.integers else torch.float8_e4m3fn).cpu().contiguous(),
            scale=scale.detach().cpu().clone(memory_format=torch.contiguous_format),  # it may change with the weight
            zero_point=torch.zeros((), dtype=torch.int8),
        )

    @property
    def largest(self) -> float:
        """The largest of the values, without sign."""
        return float(self.values.float().abs().amax()) if self.values.numel() else 0.0

    def dequantized(self) -> Tensor:
        """Return the weight as a reader of the file restores it."""
        return (self.values.float() - self.zero_point) * self.scale
