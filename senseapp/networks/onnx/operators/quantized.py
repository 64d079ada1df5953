"""Quantization and dequantization read as float arithmetic; gradients pass rounding unchanged (straight through).

Integer codes are kept as float tensors with whole values, so that layers between the two stay float layers.
"""

from __future__ import annotations

import onnx
import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import operator

_RANGES = {
    dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for dtype in (torch.uint8, torch.int8, torch.uint16, torch.int16)
}
_OUTPUT_RANGES: dict[int, tuple[int, int]] = {
    onnx.TensorProto.UINT8: _RANGES[torch.uint8],
    onnx.TensorProto.INT8: _RANGES[torch.int8],
    onnx.TensorProto.UINT16: _RANGES[torch.uint16],
    onnx.TensorProto.INT16: _RANGES[torch.int16],
    onnx.TensorProto.UINT4: (0, 2**4 - 1),
    onnx.TensorProto.INT4: (-(2**3), 2**3 - 1),
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
    by_zero_point = _RANGES.get(zero.dtype if zero is not None else torch.uint8, _RANGES[torch.uint8])
    low, high = _OUTPUT_RANGES.get(output_dtype, by_zero_point)
    scaled = x / along(scale, x, axis, block_size)
    rounded = scaled + (torch.round(scaled) - scaled).detach()
    if zero is not None:
        rounded = rounded + along(zero.to(x.dtype), x, axis, block_size)
    return rounded.clamp(low, high)


@operator("DequantizeLinear")
def _dequantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0) -> Tensor:
    codes = x.to(scale.dtype)
    if zero is not None:
        codes = codes - along(zero.to(scale.dtype), x, axis, block_size)
    return codes * along(scale, x, axis, block_size)


def along(values: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Return scales or zero points in a shape that multiplies ``x``: one, one per index of ``axis``, or per block."""
    if values.numel() == 1:
        return values.reshape(())
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = -1
    return values.reshape(shape)
