"""Quantized weights as the integers and scales that they are multiples of, found again from the weights alone.

Repair may have multiplied whole channels since the weights were rounded, so scales are taken from the weights as they
are, and what the file gives back is compared with them before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.quantization.grid import GRIDS

_TOLERANCE = 2.0**-22  # relative, two digits of float32: to multiply a rounded weight by a factor rounds again
_NUDGES = (0, 1, -1, 2, -2)  # of a scale, in units of its last place: the largest weight gives it to rounding
_FLOAT8_BITS = 8


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

    def dequantized(self) -> Tensor:
        """Return the weight that a reader of the file gets."""
        return (self.values.float() - self.zero_point) * self.scale


def as_integers(weight: Tensor, *, bits: int, channel_axis: int) -> IntegerWeight | None:
    """Return ``weight`` as integers of ``bits`` bits and scales; None if it lies on no such grid.

    One scale for the tensor is tried before one for each index of ``channel_axis``, integers before the 8-bit floats.
    """
    if weight.dtype is not torch.float32 or not weight.numel():
        return None
    wanted = weight.detach().cpu().contiguous()
    channels = wanted.movedim(channel_axis, 0).flatten(1)  # (channels, weights of each)
    for number_format in ("int", "fp8_e4m3") if bits == _FLOAT8_BITS else ("int",):
        grid = GRIDS[number_format](bits)
        peaks = range(int(grid.largest), 0, -1) if number_format == "int" else (grid.largest,)
        dtype = torch.int8 if number_format == "int" else torch.float8_e4m3fn
        for rows in (channels.reshape(1, -1), channels):
            scales = _scales(rows, grid.nearest, peaks if len(rows) > 1 else peaks[:1])
            if scales is None:
                continue
            shape = [-1 if axis == channel_axis else 1 for axis in range(wanted.dim())]
            scale = scales.reshape(shape if len(scales) > 1 else [1] * wanted.dim())
            return IntegerWeight(
                values=grid.nearest(wanted / scale).to(dtype), scale=scale, zero_point=torch.zeros((), dtype=torch.int8)
            )
    return None


def _scales(rows: Tensor, nearest: Callable[[Tensor], Tensor], peaks: range | tuple[float, ...]) -> Tensor | None:
    """Return a scale for each row of which all its numbers are multiples, float32 (rows,); None if a row has none.

    ``peaks`` are the numbers that the largest of a row may stand for, the usual one first.
    """
    largest = rows.abs().amax(1)
    best, error = torch.ones_like(largest), torch.full_like(largest, torch.inf)
    for peak in peaks:
        for nudge in _NUDGES:
            left = (error > 0).nonzero().flatten() if peak == peaks[0] else (error > _TOLERANCE).nonzero().flatten()
            if not len(left):
                return best
            scale = _nudged((largest[left] / peak).clamp_min(torch.finfo(torch.float32).tiny), nudge)
            found = _error(rows[left], scale, nearest)
            better = found < error[left]
            best[left[better]], error[left[better]] = scale[better], found[better]
        if not bool((error <= _TOLERANCE).any()):  # nothing here lies on a grid
            return None
    return best if bool((error <= _TOLERANCE).all()) else None


def _nudged(scale: Tensor, steps: int) -> Tensor:
    towards = torch.full_like(scale, torch.inf if steps > 0 else 0.0)
    for _ in range(abs(steps)):
        scale = torch.nextafter(scale, towards)
    return scale


def _error(rows: Tensor, scale: Tensor, nearest: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the largest relative difference of each row from its nearest multiples; (rows,)."""
    got = nearest(rows / scale[:, None]) * scale[:, None]
    difference = (got - rows).abs() / rows.abs()
    return torch.where(rows == 0, torch.where(got == 0, 0.0, torch.inf), difference).amax(1)
