"""Operators that work on each element, also quantization, and those that reduce axes to one number each.

Quantization and dequantization are read as float arithmetic: integer codes are kept as float tensors with whole values,
so that layers between the two stay float layers, and gradients pass rounding unchanged (straight through).
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.operators.registry import FormNotRead, enter, operator

_SAME_IN_TORCH = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL")
_DTYPES: dict[int, torch.dtype] = {
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16), torch.float32),
    TensorProto.DOUBLE: torch.float64,
    **{getattr(TensorProto, name): getattr(torch, name.lower()) for name in _SAME_IN_TORCH},
}


def dtype_of(element_type: int) -> torch.dtype:
    """Return torch's type for an ONNX element type; half precision is read as float32."""
    if element_type not in _DTYPES:
        raise UnsupportedModel(f"A tensor type of the file ({element_type}) is not supported; use float32 or integers.")
    return _DTYPES[element_type]


def _fold(step: Callable[[Tensor, Tensor], Tensor], *tensors: Tensor) -> Tensor:
    return functools.reduce(step, tensors)


enter(
    {
        "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
        "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
        "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
        "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
        "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Greater": torch.gt,
        "GreaterOrEqual": torch.ge, "HardSwish": F.hardswish, "Less": torch.lt, "LessOrEqual": torch.le,
        "IsNaN": torch.isnan, "Log": torch.log, "Max": partial(_fold, torch.maximum),
        "Mean": lambda *tensors: _fold(torch.add, *tensors) / len(tensors), "Min": partial(_fold, torch.minimum),
        "Mish": F.mish, "Mul": torch.mul, "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or,
        "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
        "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": F.softplus, "Softsign": F.softsign,
        "Sqrt": torch.sqrt, "Sub": torch.sub, "Sum": partial(_fold, torch.add), "Tan": torch.tan, "Tanh": torch.tanh,
        "Where": torch.where, "Xor": torch.logical_xor,
    }
)  # fmt: skip
enter(
    {
        "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),  # the slope broadcasts to any axis
        "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
        "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
        "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
        "Celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
        "Selu": lambda x, *, alpha=1.6732632423543772, gamma=1.0507009873554805: gamma * F.elu(x, alpha),
        "Swish": lambda x, *, alpha=1.0: F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x),
        "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
        "ThresholdedRelu": lambda x, *, alpha=1.0: torch.where(x > alpha, x, 0),
        "Shrink": lambda x, *, bias=0.0, lambd=0.5: torch.where(
            x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0)
        ),
        "IsInf": lambda x, *, detect_positive=True, detect_negative=True: (
            (torch.isposinf(x) & detect_positive) | (torch.isneginf(x) & detect_negative)
        ),
        "Mod": lambda a, b, *, fmod=False: torch.fmod(a, b) if fmod else torch.remainder(a, b),
        "BitShift": lambda x, by, *, direction="LEFT": x << by if direction == "LEFT" else x >> by,
        "Cast": lambda x, *, to=0: x.to(dtype_of(to)),
        "CastLike": lambda x, like: x.to(like.dtype),
        "Div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
        "Identity": lambda x: x,
    }
)


enter({"Pow": lambda base, exponent: torch.pow(base, exponent).to(base.dtype)}, scalars=(1,))  # the base's type


@operator("Clip", scalars=(1, 2))
def _clip(x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    x = x if min is None else torch.clamp(x, min=min)
    return x if max is None else torch.clamp(x, max=max)


@operator("Dropout", numbers=(1, 2))
def _dropout(x: Tensor, _ratio: float | None = None, training: bool | None = None) -> tuple[Tensor, Tensor]:
    if training:
        raise FormNotRead("it is in training mode. Export the network in evaluation mode.")
    return x, torch.ones((), dtype=torch.bool, device=x.device).expand(x.shape)


def _of_rest(function: Callable[..., Tensor], x: Tensor, *, axis: int = 1) -> Tensor:
    """Apply ``function`` where all axes from ``axis`` on are one."""
    return function(x.flatten(axis if axis >= 0 else x.ndim + axis), dim=-1).reshape(x.shape)


def _of_axis(function: Callable[..., Tensor], x: Tensor, *, axis: int = -1) -> Tensor:
    return function(x, dim=axis)


_OF_ONE_AXIS: dict[str, Callable[..., Tensor]] = {
    "Softmax": torch.softmax,
    "LogSoftmax": torch.log_softmax,
    "Hardmax": lambda x, dim: F.one_hot(x.argmax(dim), x.shape[dim]).movedim(-1, dim).to(x.dtype),
}
for _name, _function in _OF_ONE_AXIS.items():
    operator(_name)(partial(_of_rest, _function))
    operator(_name, since=13)(partial(_of_axis, _function))


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((each % x.ndim for each in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


_REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: (x * x).sum(axes, keep, dtype=x.dtype).sqrt(),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype).log(),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMin": torch.amin,
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep, dtype=x.dtype),
}


def _reduce(
    function: Callable[..., Tensor],
    x: Tensor,
    axes: Sequence[int] | None = None,
    *,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
) -> Tensor:
    return x if not axes and noop_with_empty_axes else function(x, tuple(axes or range(x.ndim)), keepdims)


for _name, _function in _REDUCTIONS.items():
    operator(_name, numbers=(1,))(partial(_reduce, _function))


def _position(
    function: Callable[..., Tensor], x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False
) -> Tensor:
    if select_last_index:
        return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keepdims)
    return function(x, dim=axis, keepdim=keepdims)


enter({"ArgMax": partial(_position, torch.argmax), "ArgMin": partial(_position, torch.argmin)})


_RANGES: dict[int, tuple[int, int]] = {
    **{getattr(TensorProto, f"INT{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16)},
    **{getattr(TensorProto, f"UINT{bits}"): (0, 2**bits - 1) for bits in (4, 8, 16)},
}


@operator("QuantizeLinear")
def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Tensor:
    own = torch.iinfo(torch.uint8 if zero is None or zero.is_floating_point() else zero.dtype)
    scaled = x / _along(scale, x, axis, block_size)
    rounded = scaled + (torch.round(scaled) - scaled).detach()
    if zero is not None:
        rounded = rounded + _along(zero.to(x.dtype), x, axis, block_size)
    return rounded.clamp(*_RANGES.get(output_dtype, (own.min, own.max)))


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
