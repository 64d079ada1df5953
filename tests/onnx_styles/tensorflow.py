"""As tf2onnx and keras2onnx write: channels last outside, Transposes around convolutions, computed shapes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.onnx_styles.writer import Writer

_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def _writer(opset: int = 13, **how: int) -> Writer:
    return Writer(opset=opset, names="StatefulPartitionedCall/model/block/", **how)


def _first(w: Writer, x: str) -> str:
    return w.op("Transpose", x, perm=_TO_FIRST)


def _last(w: Writer, x: str) -> str:
    return w.op("Transpose", x, perm=_TO_LAST)


def weights_transposed_in_the_graph() -> bytes:
    """Kernels stay as TensorFlow stores them, and the graph transposes and reshapes them; ReLU6 as Clip."""
    w = _writer()
    low, high = w.const(np.float32(0)), w.const(np.float32(6))
    x = _first(w, w.input(["n", 32, 32, 3]))
    kernel = w.op("Transpose", w.const(w.numbers(3, 3, 3, 8, scale=0.2)), perm=[3, 2, 0, 1])
    x = w.op("Clip", w.op("Conv", x, kernel, auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3]), low, high)
    kernel = w.op("Transpose", w.const(w.numbers(3, 3, 8, 1, scale=0.3)), perm=[2, 3, 0, 1])
    x = w.op("Conv", x, kernel, auto_pad="SAME_UPPER", strides=[1, 1], kernel_shape=[3, 3], group=8)
    x = w.op("Clip", w.norm(x, 8), low, high)
    kernel = w.op("Transpose", w.const(w.numbers(1, 1, 8, 16, scale=0.3)), perm=[3, 2, 0, 1])
    x = w.norm(w.op("Conv", x, kernel, kernel_shape=[1, 1], auto_pad="VALID"), 16)
    x = w.op("Squeeze", w.op("GlobalAveragePool", x), w.ints(2, 3))
    return w.file(w.op("Gemm", x, w.weight(16, 5), w.weight(5)))


def resize_to_a_computed_size() -> bytes:
    """A segmentation network that enlarges to the size of its input, and answers with the channels last."""
    w = _writer(11)
    image = w.input([None, 32, 32, 3])
    x = w.op("Relu", w.conv(_first(w, image), 3, 8, strides=[2, 2]))
    deep = w.op("Relu", w.conv(x, 8, 8, strides=[2, 2]))
    size = w.op("Slice", w.op("Shape", image), w.ints(1), w.ints(3), w.ints(0))
    front = w.op("Slice", w.op("Shape", deep), w.ints(0), w.ints(2), w.ints(0))
    sizes = w.op("Concat", front, w.op("Cast", w.op("Cast", size, to=6), to=7), axis=0)
    empty = w.const(np.zeros(0), np.float32)
    way = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    x = w.op("Resize", deep, empty, empty, sizes, **way)
    return w.file(_last(w, w.conv(x, 8, 4, 1)))


def detector_with_bytes() -> bytes:
    """An SSD from the object detection library: bytes in, boxes and scores behind NonMaxSuppression."""
    w = _writer(11)
    image = w.input([1, 32, 32, 3], TensorProto.UINT8, "input_tensor:0")
    x = w.op("Sub", w.op("Mul", w.op("Cast", image, to=1), w.const(np.float32(2 / 255))), w.const(np.float32(1)))
    x = w.op("Relu", w.conv(_first(w, x), 3, 8, strides=[2, 2]))
    boxes, scores = [], []
    for _ in range(2):
        x = w.op("Relu", w.conv(x, 8, 8, strides=[2, 2]))
        boxes.append(w.op("Reshape", _last(w, w.conv(x, 8, 8, 1)), w.ints(1, -1, 4)))
        scores.append(w.op("Reshape", _last(w, w.conv(x, 8, 6, 1)), w.ints(1, -1, 3)))
    box = w.op("Concat", *boxes, axis=1, into="raw_boxes")
    score = w.op("Concat", *scores, axis=1, into="raw_scores")
    by_class = w.op("Transpose", w.op("Sigmoid", score), perm=[0, 2, 1])
    most, overlap, least = w.ints(10), w.const([0.5], np.float32), w.const([0.1], np.float32)
    return w.file(w.op("NonMaxSuppression", box, by_class, most, overlap, least), "raw_boxes", "raw_scores")


def transposed_convolution() -> bytes:
    """Conv2DTranspose: the output's shape is an attribute, and a Slice removes what is too much."""
    w = _writer()
    x = w.op("LeakyRelu", w.conv(_first(w, w.input([1, 16, 16, 3])), 3, 8, strides=[2, 2]), alpha=0.2)
    x = w.op("ConvTranspose", x, w.weight(8, 6, 4, 4), strides=[2, 2], output_shape=[17, 17], kernel_shape=[4, 4])
    x = w.op("Slice", x, w.ints(0, 0), w.ints(16, 16), w.ints(2, 3))
    return w.file(w.op("Tanh", _last(w, w.conv(x, 6, 3))))


def attention_by_einsum() -> bytes:
    """Keras' MultiHeadAttention: projections and attention as Einsum with weights of three axes."""
    w = _writer()
    x = _last(w, w.conv(_first(w, w.input(["n", 16, 16, 3])), 3, 12, 4, strides=[4, 4], pads=[0, 0, 0, 0]))
    x = w.op("Reshape", x, w.ints(-1, 16, 12))
    apart = w.op("Sub", x, w.op("ReduceMean", x, axes=[2]))
    variance = w.op("ReduceMean", w.op("Mul", apart, apart), axes=[2])
    n = w.op("Div", apart, w.op("Sqrt", w.op("Add", variance, w.const(np.float32(1e-6)))))
    q, k, v = (
        w.op("Add", w.op("Einsum", n, w.weight(12, 3, 4), equation="abc,cde->abde"), w.weight(3, 4)) for _ in range(3)
    )
    scores = w.op("Einsum", k, w.op("Mul", q, w.const(np.float32(0.5))), equation="aecd,abcd->acbe")
    mixed = w.op("Einsum", w.op("Softmax", scores, axis=-1), v, equation="acbe,aecd->abcd")
    x = w.op("Add", x, w.op("Einsum", mixed, w.weight(3, 4, 12), equation="abcd,cde->abe"))
    return w.file(w.dense(w.op("ReduceMean", x, axes=[1], keepdims=0), 12, 5))
