"""Fixed number of bins that divide the cells of a quantization grid, filled batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.quantization import QuantizationGranularity
from senseapp.compressions.quantization.grid import affine_of, extremes_of, in_memory_order, scale_of

SUB_BINS = 16
"""Bins per cell: 4,096 for 8 bits, for any number of values."""

_CHUNK = 2**18  # values per step, which bounds the memory of the index


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGrid:
    """A grid laid over a tensor: place = value / scale + zero_point, of which 0 to cells − 1 are on the grid.

    ``scale`` and ``zero_point`` are broadcastable to the tensor.
    """

    cells: int
    scale: Tensor
    zero_point: Tensor

    @classmethod
    def of_weight(cls, weight: Tensor, *, bits: int, per_channel: bool, channel_axis: int = 0) -> PlacedGrid:
        """Lay the symmetric grid that quantization uses over ``weight``, as in :func:`scale_of`."""
        granularity: QuantizationGranularity = "channel" if per_channel else "tensor"
        scale = scale_of(weight, bits=bits, granularity=granularity, channel_axis=channel_axis)
        largest = 2 ** (bits - 1) - 1
        return cls(cells=2 * largest + 1, scale=scale, zero_point=torch.full_like(scale, float(largest)))

    @classmethod
    def of_ranges(cls, lows: Tensor, highs: Tensor, *, bits: int) -> PlacedGrid:
        """Lay affine grids over the ranges from ``lows`` to ``highs``, as in :func:`affine_of`."""
        ends = zip(lows.flatten().tolist(), highs.flatten().tolist(), strict=True)
        pairs = torch.tensor([affine_of(low, high, bits=bits) for low, high in ends], dtype=torch.float32)
        return cls(cells=2**bits, scale=pairs[:, 0].reshape(lows.shape), zero_point=pairs[:, 1].reshape(lows.shape))

    @property
    def single_scale(self) -> float:
        """The step, if it is the same for all values; else NaN."""
        return float(self.scale) if self.scale.numel() == 1 else math.nan

    @property
    def zero_cell(self) -> int:
        """The cell of value 0; the middle one over channels if they differ."""
        return int(self.zero_point.flatten().median())

    def places(self, values: Tensor) -> Tensor:
        """Return the positions of ``values`` on the grid, in steps; float32, shape of ``values``."""
        return values.float() / self.scale + self.zero_point


class GridBins:
    """Counts, gradient sums and places on a grid, all of fixed size, in float64."""

    def __init__(self, grid: PlacedGrid) -> None:
        self.grid = grid
        bins = grid.cells * SUB_BINS
        self.counts = torch.zeros(bins, dtype=torch.float64)
        self.gradient_sums = torch.zeros(bins, dtype=torch.float64)
        self.gradient_magnitudes = torch.zeros(bins, dtype=torch.float64)
        self.place_sums = torch.zeros(grid.cells, dtype=torch.float64)
        self.zeros = 0.0
        self.clamped = 0.0
        self.clamped_sensitivity = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Tensor, gradients: Tensor) -> None:
        """Add values and the objective's gradient at them, of equal shape, to the bins; neither is stored.

        They are counted on the processor: on cards, sums of weighted counts depend on timing.
        """
        values, gradients = values.cpu(), gradients.cpu()
        low, high = extremes_of(values)
        self.low, self.high = min(self.low, low), max(self.high, high)
        places = self.grid.places(values)
        self.zeros += float(((places + 0.5).floor() == self.grid.zero_point).count_nonzero())
        flat = zip(
            *(torch.split(in_memory_order(each, like=places), _CHUNK) for each in (places, gradients)), strict=True
        )
        for place, gradient in flat:
            self._add(place, gradient)

    def _add(self, places: Tensor, gradients: Tensor) -> None:
        cells, bins = self.grid.cells, len(self.counts)
        # One bin more at either end, for clamped values.
        index = places.add(0.5).mul_(SUB_BINS).floor_().clamp_(-1, bins).long().add_(1)
        counts = torch.bincount(index, minlength=bins + 2)
        self.clamped += float(counts[0] + counts[-1])
        self.counts += _clamped(counts)
        inside = _clamped(torch.bincount(index, places.clamp(0, cells - 1).double(), minlength=bins + 2))
        self.place_sums += inside.view(cells, SUB_BINS).sum(dim=1)
        # Sums of positive and of negative gradients, side by side: one pass for both.
        signed = index.add_(gradients < 0, alpha=bins + 2)
        sides = torch.bincount(signed, gradients.double(), minlength=2 * (bins + 2)).view(2, -1)
        self.gradient_sums += _clamped(sides.sum(dim=0))
        magnitudes = sides[0] - sides[1]
        self.clamped_sensitivity += float(magnitudes[0] + magnitudes[-1])
        self.gradient_magnitudes += _clamped(magnitudes)


def _clamped(sums: Tensor) -> Tensor:
    """Add the outermost counts, of clamped values, to the bins next to them; changes ``sums``."""
    sums[1] += sums[0]
    sums[-2] += sums[-1]
    return sums[1:-1]
