"""Operators that work on each element: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.operators.registry import FormNotRead, operator, plain

_TYPES = onnx.TensorProto
DTYPES: dict[int, torch.dtype] = {
    _TYPES.FLOAT: torch.float32,
    _TYPES.FLOAT16: torch.float32,
    _TYPES.BFLOAT16: torch.float32,
    _TYPES.DOUBLE: torch.float64,
    _TYPES.INT8: torch.int8,
    _TYPES.INT16: torch.int16,
    _TYPES.INT32: torch.int32,
    _TYPES.INT64: torch.int64,
    _TYPES.UINT8: torch.uint8,
    _TYPES.UINT16: torch.uint16,
    _TYPES.UINT32: torch.uint32,
    _TYPES.UINT64: torch.uint64,
    _TYPES.BOOL: torch.bool,
}


def dtype_of(element_type: int) -> torch.dtype:
    """Return torch's type for an ONNX element type; half precision is read as float32."""
    if element_type not in DTYPES:
        raise UnsupportedModel(f"A tensor type of the file ({element_type}) is not supported; use float32 or integers.")
    return DTYPES[element_type]


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _not(x: Tensor) -> Tensor:
    return torch.logical_not(x)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)  # the slope broadcasts to any axis


def _fold(step: Callable[[Tensor, Tensor], Tensor], *tensors: Tensor) -> Tensor:
    return functools.reduce(step, tensors)


def _mean(*tensors: Tensor) -> Tensor:
    return functools.reduce(torch.add, tensors) / len(tensors)


plain(
    {
        "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
        "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
        "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
        "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh, "Div": _divide,
        "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "Greater": torch.gt,
        "GreaterOrEqual": torch.ge, "HardSwish": F.hardswish, "Less": torch.lt, "LessOrEqual": torch.le,
        "IsNaN": torch.isnan, "Log": torch.log, "Max": partial(_fold, torch.maximum), "Mean": _mean,
        "Min": partial(_fold, torch.minimum), "Mish": F.mish, "Mul": torch.mul, "Neg": torch.neg, "Not": _not,
        "Or": torch.logical_or, "PRelu": _prelu, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
        "Round": torch.round, "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
        "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Sub": torch.sub,
        "Sum": partial(_fold, torch.add), "Tan": torch.tan, "Tanh": torch.tanh, "Where": torch.where,
        "Xor": torch.logical_xor,
    }
)  # fmt: skip


@operator("LeakyRelu")
def _leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


@operator("Elu")
def _elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@operator("Celu")
def _celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@operator("Selu")
def _selu(x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    return gamma * F.elu(x, alpha)


@operator("HardSigmoid")
def _hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(alpha * x + beta, 0, 1)


@operator("Swish")
def _swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@operator("Gelu")
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@operator("ThresholdedRelu")
def _thresholded(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


@operator("Shrink")
def _shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


@operator("IsInf")
def _infinite(x: Tensor, *, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    return (torch.isposinf(x) & detect_positive) | (torch.isneginf(x) & detect_negative)


@operator("Pow", scalars=(1,))
def _power(base: Tensor, exponent: Tensor | float) -> Tensor:
    return torch.pow(base, exponent).to(base.dtype)  # the type of the base, by the specification


@operator("Mod")
def _mod(a: Tensor, b: Tensor, *, fmod: bool = False) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@operator("BitShift")
def _shift(x: Tensor, by: Tensor, *, direction: str = "LEFT") -> Tensor:
    return torch.bitwise_left_shift(x, by) if direction == "LEFT" else torch.bitwise_right_shift(x, by)


@operator("Clip")
def _clip_1(x: Tensor, *, min: float = -3.4028234663852886e38, max: float = 3.4028234663852886e38) -> Tensor:
    return torch.clamp(x, min, max)


@operator("Clip", since=11, scalars=(1, 2))
def _clip(x: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None) -> Tensor:
    x = x if lower is None else torch.clamp(x, min=lower)
    return x if upper is None else torch.clamp(x, max=upper)


@operator("Cast")
def _cast(x: Tensor, *, to: int = 0) -> Tensor:
    return x.to(dtype_of(to))


@operator("CastLike")
def _cast_like(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@operator("Identity")
def _identity(x: Tensor) -> Tensor:
    return x


@operator("Dropout", numbers=(1, 2))
def _dropout(x: Tensor, _ratio: float | None = None, training: bool | None = None) -> tuple[Tensor, Tensor]:
    if training:
        raise FormNotRead("it is in training mode. Export the network in evaluation mode.")
    return x, torch.ones((), dtype=torch.bool, device=x.device).expand(x.shape)


def _hardmax(x: Tensor, dim: int) -> Tensor:
    return F.one_hot(x.argmax(dim), x.shape[dim]).movedim(-1, dim).to(x.dtype)


_SOFTMAXES: dict[str, Callable[..., Tensor]] = {
    "Softmax": torch.softmax,
    "LogSoftmax": torch.log_softmax,
    "Hardmax": _hardmax,
}


@operator(*_SOFTMAXES)
def _softmax_1(x: Tensor, *, op: str = "", axis: int = 1) -> Tensor:
    """All axes from ``axis`` on are one."""
    return _SOFTMAXES[op](x.flatten(axis if axis >= 0 else x.ndim + axis), dim=-1).reshape(x.shape)


@operator(*_SOFTMAXES, since=13)
def _softmax(x: Tensor, *, op: str = "", axis: int = -1) -> Tensor:
    return _SOFTMAXES[op](x, dim=axis)
