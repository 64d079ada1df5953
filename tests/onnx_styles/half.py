"""Files in float16: all of one, with float32 outside, and with a part that stayed float32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.onnx_styles.writer import Writer


def _halved(model: onnx.ModelProto, keep: tuple[str, ...] = ()) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in keep:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))


def _network(w: Writer, x: str) -> str:
    x = w.op("Relu", w.norm(w.conv(x, 3, 8, strides=[2, 2], bias=False), 8))
    x = w.op("Clip", w.conv(x, 8, 8), w.const(np.float32(0)), w.const(np.float32(6)))
    x = w.op("Flatten", w.op("GlobalAveragePool", x))
    return w.op("Gemm", x, w.weight(5, 8), w.weight(5), transB=1)


def all_of_it() -> bytes:
    """Half precision from the input to the output."""
    w = Writer(opset=13)
    model = w.model(_network(w, w.input(["n", 3, 16, 16], TensorProto.FLOAT16)))
    _halved(model)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    return bytes(model.SerializeToString())


def with_casts_at_the_end() -> bytes:
    """The usual converter: float32 outside, and its Casts behind all other nodes, whatever their order."""
    w = Writer(opset=13)
    w.input(["n", 3, 16, 16])
    w.op("Cast", _network(w, "x_half"), into="y", to=TensorProto.FLOAT)
    w.op("Cast", "x", into="x_half", to=TensorProto.FLOAT16)
    model = w.model("y")
    _halved(model)
    return bytes(model.SerializeToString())


def with_a_part_in_float32() -> bytes:
    """A list of blocked operators: the resize computes in float32 between two Casts."""
    w = Writer(opset=13)
    x = w.op("Cast", w.input([1, 3, 16, 16]), to=TensorProto.FLOAT16)
    x = w.op("Relu", w.conv(x, 3, 8, strides=[2, 2]))
    scales, empty = w.const([1, 1, 2, 2], np.float32), w.const(np.zeros(0), np.float32)
    x = w.op("Resize", w.op("Cast", x, to=TensorProto.FLOAT), empty, scales, mode="nearest")
    x = w.conv(w.op("Cast", x, to=TensorProto.FLOAT16), 8, 4, 1)
    model = w.model(w.op("Cast", x, to=TensorProto.FLOAT))
    _halved(model, keep=(scales, empty))
    return bytes(model.SerializeToString())
