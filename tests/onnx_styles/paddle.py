"""As paddle2onnx writes: numbered node names, Identity aliases, hard activations in pieces, shapes in int32."""

from __future__ import annotations

import numpy as np

from tests.onnx_styles.writer import Writer


def _writer(opset: int = 11, *, in_nodes: bool = False) -> Writer:
    return Writer(opset=opset, names="p2o.", in_nodes=in_nodes)


def _hard_swish(w: Writer, x: str) -> str:
    """x · clip(x + 3, 0, 6) / 6, operator by operator."""
    limits = [w.const(np.float32(limit)) for limit in (0, 6)]
    inside = w.op("Clip", w.op("Add", x, w.const([3.0], np.float32)), *limits)
    return w.op("Div", w.op("Mul", x, inside), w.const([6.0], np.float32))


def text_direction() -> bytes:
    """PP-OCR's classifier of turned text lines: weights in Constant nodes, hard-swish in pieces, Softmax at the end."""
    w = _writer(in_nodes=True)
    x = _hard_swish(w, w.norm(w.conv(w.input([-1, 3, 48, 96]), 3, 8, strides=[2, 2], bias=False), 8))
    for _ in range(2):
        y = _hard_swish(w, w.norm(w.conv(x, 8, 8, group=8, bias=False), 8))
        gate = w.op("Relu", w.conv(w.op("GlobalAveragePool", y), 8, 2, 1))
        gate = w.op("HardSigmoid", w.conv(gate, 2, 8, 1), alpha=0.2, beta=0.5)
        x = w.op("Add", x, w.norm(w.conv(w.op("Mul", y, gate), 8, 8, 1, bias=False), 8))
    x = w.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = w.op("Reshape", w.op("GlobalAveragePool", x), w.ints(0, 8))
    return w.file(w.op("Softmax", w.op("Identity", w.dense(x, 8, 4)), axis=-1))


def detector_of_two_inputs() -> bytes:
    """PicoDet: a factor beside the image, boxes from distributions, and NonMaxSuppression at the end."""
    w = _writer()
    image, factor = w.input([1, 3, 64, 64], name="image"), w.input([1, 2], name="scale_factor")
    x = _hard_swish(w, w.norm(w.conv(image, 3, 8, strides=[4, 4], bias=False), 8))
    deep = _hard_swish(w, w.norm(w.conv(x, 8, 8, strides=[2, 2], bias=False), 8))
    empty, scales = w.const(np.zeros(0), np.float32), w.const([1, 1, 2, 2], np.float32)
    way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = w.op("Concat", x, w.op("Resize", deep, empty, scales, **way), axis=1)
    scores, boxes = [], []
    for level, channels in ((x, 16), (deep, 8)):
        scores.append(w.op("Reshape", w.op("Sigmoid", w.conv(level, channels, 3, 1)), w.ints(1, 3, -1)))
        spread = w.op("Transpose", w.conv(level, channels, 32, 1), perm=[0, 2, 3, 1])
        spread = w.op("Softmax", w.op("Reshape", spread, w.ints(-1, 8)), axis=1)
        sides = w.op("MatMul", spread, w.const(np.arange(8)[:, None], np.float32))
        boxes.append(w.op("Reshape", sides, w.ints(1, -1, 4)))
    box = w.op("Div", w.op("Concat", *boxes, axis=1), w.op("Concat", factor, factor, axis=1))
    score = w.op("Concat", *scores, axis=2)
    most, overlap, least = w.ints(10), w.const([0.5], np.float32), w.const([0.1], np.float32)
    found = w.op("NonMaxSuppression", box, score, most, overlap, least)
    return w.file(w.op("Gather", found, w.ints(2), axis=1))


def text_reader() -> bytes:
    """A CRNN: the image becomes a sequence, a bidirectional LSTM reads it, then dense layers and a Softmax."""
    w = _writer(12)
    x = w.op("Relu", w.conv(w.input(["n", 3, 16, 40]), 3, 8, strides=[4, 2]))
    x = w.op("Squeeze", w.op("MaxPool", x, kernel_shape=[4, 1], strides=[4, 1]), axes=[2])
    x = w.op("Transpose", x, perm=[2, 0, 1])
    weights = [w.weight(2, 24, 8, scale=0.3), w.weight(2, 24, 6, scale=0.3), w.weight(2, 48, scale=0.1)]
    (x,) = w.ops("LSTM", x, *weights, into=["lstm_y"], direction="bidirectional", hidden_size=6)
    x = w.op("Transpose", x, perm=[2, 0, 1, 3])
    x = w.op("Reshape", x, w.ints(0, 0, -1))
    return w.file(w.op("Softmax", w.dense(x, 12, 7), axis=2))
