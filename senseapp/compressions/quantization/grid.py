"""Number formats: weights and activations rounded to them in floating point, and weights as the integers they have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization import NumberFormat, QuantizationConfig, QuantizationGranularity
from senseapp.descriptions.levels import FINER_BITS

# The smallest normal float32: a channel of zeros gets a valid divisor as scale, and stays zero.
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
_FLOAT8_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def _integers(bits: int) -> WeightGrid:
    if bits not in FINER_BITS:
        QuantizationConfig.scale.check((bits,))
    largest = 2 ** (bits - 1) - 1
    return WeightGrid(largest=largest, nearest=lambda values: values.round().clamp(-largest, largest))


def _float8_e4m3(_bits: int) -> WeightGrid:
    def nearest(values: Tensor) -> Tensor:
        return values.clamp(-_FLOAT8_LARGEST, _FLOAT8_LARGEST).to(torch.float8_e4m3fn).float()

    return WeightGrid(largest=_FLOAT8_LARGEST, nearest=nearest, integers=False)


GRIDS: Mapping[NumberFormat, Callable[[int], WeightGrid]] = {"int": _integers, "fp8_e4m3": _float8_e4m3}
"""By format and bits; ties are rounded to even, larger values to the largest."""


def extremes_of(values: Tensor) -> tuple[float, float]:
    """Return the minimum and maximum of ``values``, faster than ``torch.aminmax``; NaN if one of them is NaN."""
    return float(values.amin()), float(values.amax())


def in_memory_order(values: Tensor, *, like: Tensor | None = None) -> Tensor:
    """Return ``values`` as one dimension in the memory order of ``like``, of the same shape; a view if in its own."""
    strides = (values if like is None else like).stride()
    return values.permute(sorted(range(values.dim()), key=strides.__getitem__, reverse=True)).reshape(-1)


def scale_of(
    weight: Tensor,
    *,
    bits: int,
    number_format: NumberFormat = "int",
    granularity: QuantizationGranularity = "channel",
    channel_axis: int = 0,
) -> Tensor:
    """Return the distance of neighbouring grid points (for floats, between 0 and 1), float32, zero point 0.

    scale = max |w| / largest grid number. Source: Krishnamoorthi 2018, "Quantizing deep convolutional networks for
    efficient inference", section 2.2, with the grid −(2^(b−1) − 1) … 2^(b−1) − 1.

    There is one scale per index of ``channel_axis`` or one for the tensor; the result has the shape of ``weight`` with
    1 in place of every axis that a scale spans. ``bits`` are 2 to 16, else InvalidSpec; float formats ignore them.
    """
    axes = [axis for axis in range(weight.dim()) if granularity == "tensor" or axis != channel_axis]
    largest = weight.detach().abs().amax(dim=axes, keepdim=True).float()
    return (largest / GRIDS[number_format](bits).largest).clamp_min(_SMALLEST_SCALE)


def rounded_weight(weight: Tensor, scale: Tensor, grid: WeightGrid) -> Tensor:
    """Return ``weight`` rounded to ``grid`` times ``scale``, with its dtype and strides."""
    return torch.empty_like(weight).copy_(grid.nearest(weight.detach().float() / scale) * scale)


def affine_of(low: float, high: float, *, bits: int) -> tuple[float, int]:
    """Return scale and zero point that map the range, widened to hold 0, onto 0 … 2^bits − 1.

    Zero itself stays exact, as in torch.ao's affine observers, so padding adds no error.

    >>> affine_of(-1.0, 2.0, bits=2)
    (1.0, 1)
    """
    if bits not in FINER_BITS:
        QuantizationConfig.scale.check((bits,))
    low, high, largest = min(low, 0.0), max(high, 0.0), 2**bits - 1
    scale = max((high - low) / largest, _SMALLEST_SCALE)
    return scale, min(largest, round(-low / scale))


def fake_quantize_input(
    values: Tensor, low: float, high: float, *, bits: int, number_format: NumberFormat = "int"
) -> Tensor:
    """Round activations to ``bits`` bits over the range ``low`` to ``high``, one scale for the tensor.

    Integers are affine (zero point), since activations are often one-sided; float8 is scaled so that the farther end of
    the range is its largest number. Values outside the range are clamped.
    """
    if number_format == "int":
        scale, zero_point = affine_of(low, high, bits=bits)
        return torch.fake_quantize_per_tensor_affine(values, scale, zero_point, 0, 2**bits - 1)
    grid = GRIDS[number_format](bits)
    scale = max(max(-low, high) / grid.largest, _SMALLEST_SCALE)
    return grid.nearest(values.float() / scale).mul_(scale).to(values.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWeight:
    """A weight equal to ``(values - zero_point) * scale`` in float32.

    ``values`` are int8, or float8_e4m3fn for weights in that format; ``scale`` is float32 and has 1 in place of each
    axis that a scale spans; ``zero_point`` is int8 () and 0, as weights are quantized symmetrically.
    """

    values: Tensor
    scale: Tensor
    zero_point: Tensor

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor, grid: WeightGrid) -> Self:
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
