"""One shape for every kind of weight, so that granularities are written once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP, OUTPUT, INPUT, DEPTH, ROW, COLUMN = range(6)
_KERNEL_AXES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """How a layer keeps its weight.

    Attributes:
        groups: of a grouped convolution; 1 elsewhere.
        transposed: whether input channels come first, as in ConvTranspose: (I, O/G, ...).
    """

    groups: int = 1
    transposed: bool = False

    def split(self, weight: Tensor) -> Tensor:
        """Return ``weight`` as (G, O/G, I/G, D, H, W), contiguous; axes that it lacks have length 1.

        A linear weight (O, I) gives (1, O, I, 1, 1, 1), a convolution's (O, I/G, kH, kW) gives
        (G, O/G, I/G, 1, kH, kW), a transposed convolution's (I, O/G, kH, kW) the same.
        """
        first, second, *kernel = weight.shape
        ones = (1,) * (_KERNEL_AXES - len(kernel))
        grouped = weight.reshape(self.groups, first // self.groups, second, *ones, *kernel)
        return (grouped.transpose(OUTPUT, INPUT) if self.transposed else grouped).contiguous()

    def merge(self, split: Tensor, like: Tensor) -> Tensor:
        """Undo :meth:`split`; the result has the shape and strides of ``like``, and its own dtype."""
        grouped = split.transpose(OUTPUT, INPUT) if self.transposed else split
        return torch.empty_like(like, dtype=split.dtype).copy_(grouped.reshape(like.shape))
