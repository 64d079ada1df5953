"""Quantized files: QuantizeLinear and DequantizeLinear around layers, and operators that compute in integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike
from onnx import TensorProto, helper

from tests.onnx_styles.writer import Writer


def _rounded(w: Writer, x: str, scale: float, kind: DTypeLike = np.uint8, *, zero: int | None = 0) -> str:
    """Quantize an activation by one scale, and dequantize it."""
    known = [w.const(np.float32(scale))]
    if zero is not None:
        known.append(w.const(zero, kind))
    return w.op("DequantizeLinear", w.op("QuantizeLinear", x, *known), *known)


def _weight(w: Writer, *shape: int, axis: int | None = None, kind: DTypeLike = np.int8) -> str:
    """Add integers, and the node that dequantizes them, by channel where ``axis`` is given."""
    values = w.numbers(*shape)
    over = None if axis is None else tuple(each for each in range(len(shape)) if each != axis)
    scale = np.abs(values).max(over) / np.float32(127)
    wide = scale if axis is None else scale.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    codes = w.const(np.clip(np.round(values / wide), -128, 127), kind)
    known = [w.const(scale, np.float32), w.const(np.zeros(scale.shape), kind)]
    return w.op("DequantizeLinear", codes, *known, **({} if axis is None else {"axis": axis}))


def static() -> bytes:
    """onnxruntime's static quantization: bytes of activations, weights and int32 biases."""
    w = Writer(opset=13, names="")
    x = _rounded(w, w.input(["batch", 3, 16, 16]), 1 / 255)
    for ins, outs in ((3, 8), (8, 8)):
        bias = w.op("DequantizeLinear", w.const(w.random.integers(-99, 99, outs), np.int32), w.const(np.float32(1e-3)))
        x = w.op("Relu", w.op("Conv", x, _weight(w, outs, ins, 3, 3), bias, pads=[1] * 4))
        x = _rounded(w, x, 0.01)
    x = _rounded(w, w.op("GlobalAveragePool", x), 0.005)
    x = w.op("Gemm", w.op("Flatten", x), _weight(w, 5, 8), w.weight(5), transB=1)
    return w.file(_rounded(w, x, 0.02, np.int8))


def by_channel() -> bytes:
    """TensorRT's and torch's way: int8 by output channel, activations with a zero in the middle."""
    w = Writer(opset=13, names="/net/")
    x = _rounded(w, w.input(["batch", 3, 16, 16]), 0.02, zero=128)
    x = w.op("Relu", w.op("Conv", x, _weight(w, 8, 3, 3, 3, axis=0), w.weight(8), pads=[1] * 4, strides=[2, 2]))
    x = w.op("Flatten", w.op("GlobalAveragePool", _rounded(w, x, 0.01, np.int8, zero=-100)))
    return w.file(w.op("MatMul", x, _weight(w, 8, 5, axis=1)))


def by_channel_before_its_opset() -> bytes:
    """Opset 12 with an axis, which only opset 13 has: such files exist, and are not valid as they are."""
    w = Writer(opset=12, names="")
    x = w.op("Relu", w.op("Conv", w.input([1, 3, 16, 16]), _weight(w, 8, 3, 3, 3, axis=0), pads=[1] * 4))
    return w.file(w.op("GlobalAveragePool", x))


def without_zero_points() -> bytes:
    """Symmetric weights and activations whose zero points are left out."""
    w = Writer(opset=13, names="")
    x = _rounded(w, w.input([4, 3, 16, 16]), 1 / 255, zero=None)
    x = w.op("Relu", w.op("Conv", x, _weight(w, 8, 3, 3, 3), pads=[1] * 4))
    x = w.op("Clip", _rounded(w, x, 0.02, zero=None), w.const(np.float32(0)), w.const(np.float32(2)))
    return w.file(w.op("Flatten", w.op("GlobalAveragePool", x)))


def weights_in_four_bits() -> bytes:
    """Weights alone, in four bits, with a scale for every eight rows: opset 21."""
    w = Writer(opset=21, names="", ir=10)
    x = w.op("Flatten", w.op("AveragePool", w.input(["n", 3, 16, 16]), kernel_shape=[4, 4], strides=[4, 4]))
    codes = helper.make_tensor("codes", TensorProto.INT4, (48, 6), w.random.integers(-8, 8, 288).tolist())
    w.initializers.append(codes)
    dense = w.op("DequantizeLinear", "codes", w.const(np.full((6, 6), 0.05), np.float32), axis=0, block_size=8)
    return w.file(w.op("MatMul", x, dense))


def products_in_integers() -> bytes:
    """QLinearConv and QLinearMatMul: there is no float layer in the file."""
    w = Writer(opset=13, names="quant/")
    scale, zero = w.const(np.float32(0.02)), w.const(0, np.uint8)
    x = w.op("QuantizeLinear", w.input([1, 3, 8, 8]), scale, zero)
    weight = w.const(w.random.integers(-99, 99, (4, 3, 3, 3)), np.int8)
    x = w.op("QLinearConv", x, scale, zero, weight, scale, w.const(0, np.int8), scale, zero, pads=[1] * 4)
    return w.file(w.op("DequantizeLinear", x, scale, zero))


def ranges_of_each_image() -> bytes:
    """Dynamic quantization: ranges are found anew for each image, products are in integers."""
    w = Writer(opset=13, names="dyn/")
    x = w.op("Flatten", w.op("AveragePool", w.input([1, 3, 8, 8]), kernel_shape=[4, 4], strides=[4, 4]))
    codes, scale, zero = w.ops("DynamicQuantizeLinear", x, into=["codes", "scale", "zero"])
    y = w.op("MatMulInteger", codes, w.const(w.random.integers(-99, 99, (12, 5)), np.int8), zero)
    y = w.op("Mul", w.op("Cast", y, to=1), w.op("Mul", scale, w.const(np.float32(0.01))))
    return w.file(w.op("Add", y, w.weight(5)))
