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
from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, Function, operator, plain

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


def _thresholded(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


def _shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


def _hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _selu(x: Tensor, *, alpha: float, gamma: float) -> Tensor:
    return gamma * F.elu(x, alpha)


def _swish(x: Tensor, *, alpha: float) -> Tensor:
    return x * torch.sigmoid(alpha * x)


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
def _leaky_relu(at: Attributes) -> Function:
    return partial(F.leaky_relu, negative_slope=at.number("alpha", 0.01))


@operator("Elu")
def _elu(at: Attributes) -> Function:
    return partial(F.elu, alpha=at.number("alpha", 1.0))


@operator("Celu")
def _celu(at: Attributes) -> Function:
    return partial(F.celu, alpha=at.number("alpha", 1.0))


@operator("Selu")
def _make_selu(at: Attributes) -> Function:
    alpha, gamma = at.number("alpha", 1.6732632423543772), at.number("gamma", 1.0507009873554805)
    return partial(_selu, alpha=alpha, gamma=gamma)


@operator("HardSigmoid")
def _make_hard_sigmoid(at: Attributes) -> Function:
    alpha, beta = at.number("alpha", 0.2), at.number("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid
    return partial(_hard_sigmoid, alpha=alpha, beta=beta)


@operator("Swish")
def _make_swish(at: Attributes) -> Function:
    alpha = at.number("alpha", 1.0)
    return F.silu if alpha == 1 else partial(_swish, alpha=alpha)


@operator("Gelu")
def _gelu(at: Attributes) -> Function:
    return partial(F.gelu, approximate=at.text("approximate", "none"))


@operator("ThresholdedRelu")
def _make_thresholded(at: Attributes) -> Function:
    return partial(_thresholded, alpha=at.number("alpha", 1.0))


@operator("Shrink")
def _make_shrink(at: Attributes) -> Function:
    return partial(_shrink, bias=at.number("bias", 0.0), lambd=at.number("lambd", 0.5))


@operator("IsInf")
def _is_inf(at: Attributes) -> Function:
    return partial(_infinite, up=bool(at.whole("detect_positive", 1)), down=bool(at.whole("detect_negative", 1)))


def _infinite(x: Tensor, *, up: bool, down: bool) -> Tensor:
    return (torch.isposinf(x) & up) | (torch.isneginf(x) & down)


@operator("Pow", scalars=(1,))
def _make_power(_at: Attributes) -> Function:
    return _power


def _power(base: Tensor, exponent: Tensor | float) -> Tensor:
    return torch.pow(base, exponent).to(base.dtype)  # the type of the base, by the specification


@operator("Mod")
def _mod(at: Attributes) -> Function:
    return torch.fmod if at.whole("fmod", 0) else torch.remainder


@operator("BitShift")
def _shift(at: Attributes) -> Function:
    return torch.bitwise_left_shift if at.text("direction", "LEFT") == "LEFT" else torch.bitwise_right_shift


@operator("Clip", scalars=(1, 2))
def _clip(at: Attributes) -> Function:
    if at.version < 11:
        lower = at.number("min", -3.4028234663852886e38)
        return partial(torch.clamp, min=lower, max=at.number("max", 3.4028234663852886e38))
    return _clamp


def _clamp(x: Tensor, lower: Tensor | float | None = None, upper: Tensor | float | None = None) -> Tensor:
    x = x if lower is None else torch.clamp(x, min=lower)
    return x if upper is None else torch.clamp(x, max=upper)


@operator("Cast")
def _cast(at: Attributes) -> Function:
    return partial(Tensor.to, dtype=dtype_of(at.whole("to", 0)))


@operator("CastLike")
def _cast_like(_at: Attributes) -> Function:
    return _to_type_of


def _to_type_of(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


@operator("Identity")
def _make_identity(_at: Attributes) -> Function:
    return _same


def _same(x: Tensor) -> Tensor:
    return x


@operator("Dropout", numbers=(1, 2))
def _dropout(_at: Attributes) -> Function:
    return _undropped


def _undropped(x: Tensor, _ratio: float | None = None, training: bool | None = None) -> tuple[Tensor, Tensor]:
    if training:
        raise FormNotRead("it is in training mode. Export the network in evaluation mode.")
    return x, torch.ones((), dtype=torch.bool, device=x.device).expand(x.shape)


def _axis_softmax(x: Tensor, *, function: Callable[..., Tensor], axis: int) -> Tensor:
    return function(x, dim=axis)


def _flat_softmax(x: Tensor, *, function: Callable[..., Tensor], axis: int) -> Tensor:
    """Before opset 13 all axes from ``axis`` on are one."""
    return function(x.flatten(axis if axis >= 0 else x.ndim + axis), dim=-1).reshape(x.shape)


def _hardmax(x: Tensor, dim: int) -> Tensor:
    return F.one_hot(x.argmax(dim), x.shape[dim]).movedim(-1, dim).to(x.dtype)


_SOFTMAXES: dict[str, Callable[..., Tensor]] = {
    "Softmax": torch.softmax,
    "LogSoftmax": torch.log_softmax,
    "Hardmax": _hardmax,
}


@operator(*_SOFTMAXES)
def _softmax(at: Attributes) -> Function:
    function = _SOFTMAXES[at.op]
    if at.version >= 13:
        return partial(_axis_softmax, function=function, axis=at.whole("axis", -1))
    return partial(_flat_softmax, function=function, axis=at.whole("axis", 1))
