"""Quantization and dequantization read as float arithmetic; gradients pass rounding unchanged (straight through).

Integer codes are kept as float tensors with whole values, so that layers between the two stay float layers.
"""

from __future__ import annotations

import torch
from onnx import TensorProto
from torch import Tensor

from senseapp.networks.onnx.operators.registry import operator

_BYTES = (0, 255)
_RANGES: dict[int, tuple[int, int]] = {
    **{getattr(TensorProto, f"INT{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16)},
    **{getattr(TensorProto, f"UINT{bits}"): (0, 2**bits - 1) for bits in (4, 8, 16)},
}
_RANGES_OF_ZERO_POINTS = {
    getattr(torch, name): _RANGES[getattr(TensorProto, name.upper())] for name in ("int8", "uint8", "int16", "uint16")
}


@operator("QuantizeLinear")
def _quantize(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    by_zero_point = _BYTES if zero is None else _RANGES_OF_ZERO_POINTS.get(zero.dtype, _BYTES)
    scaled = x / _along(scale, x, axis, block_size)
    rounded = scaled + (torch.round(scaled) - scaled).detach()
    if zero is not None:
        rounded = rounded + _along(zero.to(x.dtype), x, axis, block_size)
    return rounded.clamp(*_RANGES.get(output_dtype, by_zero_point))


@operator("DequantizeLinear")
def _dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0) -> Tensor:
    codes = x.to(scale.dtype)
    if zero is not None:
        codes = codes - _along(zero.to(scale.dtype), x, axis, block_size)
    return codes * _along(scale, x, axis, block_size)


def _along(values: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return scales or zero points in a shape that multiplies ``x``: one, one per index of ``axis``, or per block."""
    if values.numel() == 1:
        return values.reshape(())
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return values.reshape([-1 if each == axis % x.ndim else 1 for each in range(x.ndim)])
