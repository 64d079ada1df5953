"""As converters from Caffe and Darknet write: old opsets, fixed batches, weights in Constant nodes, no names."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.onnx_styles.writer import Writer


def nameless_and_fixed_to_ten() -> bytes:
    """AlexNet's shape: ten images, weights in Constant nodes, no node names, LRN and Dropout, opset 9."""
    w = Writer(opset=9, names=None, in_nodes=True, ir=4)
    x = w.op("Relu", w.conv(w.input([10, 3, 32, 32]), 3, 8, 5, strides=[2, 2]))
    x = w.op("MaxPool", w.op("LRN", x, size=5, alpha=1e-4, beta=0.75), kernel_shape=[3, 3], strides=[2, 2])
    x = w.op("Relu", w.conv(x, 8, 16, group=2))
    x = w.op("Flatten", w.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]), axis=1)
    x = w.op("Relu", w.op("Gemm", x, w.weight(12, 144), w.weight(12), transB=1))
    x = w.op("Dropout", x, ratio=0.5)
    x = w.op("Gemm", x, w.weight(5, 12), w.weight(5), transB=1)
    return w.file(w.op("Softmax", x, axis=1))


def nodes_in_reverse() -> bytes:
    """Nodes from the output to the input, a length stored as −1, and an opset import that no node uses."""
    w = Writer(opset=9, names=None, in_nodes=True, ir=4)
    x = w.op("Relu", w.conv(w.input([-1, 3, 16, 16]), 3, 8, strides=[2, 2]))
    x = w.op("Relu", w.norm(w.conv(x, 8, 8, bias=False), 8))
    x = w.op("Reshape", w.op("GlobalAveragePool", x), w.ints(-1, 8))
    model = w.model(w.op("Gemm", x, w.weight(8, 4), w.weight(4)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return bytes(model.SerializeToString())


def weights_listed_as_inputs() -> bytes:
    """Format version 3: every initializer is an input of the graph too; Caffe's BatchNorm and Scale."""
    w = Writer(opset=7, names="conv", ir=3)
    x = w.norm(w.conv(w.input([1, 3, 16, 16]), 3, 8, bias=False), 8)
    x = w.op("Relu", w.op("Add", w.op("Mul", x, w.weight(8, 1, 1, scale=1.0)), w.weight(8, 1, 1)))
    x = w.op("AveragePool", x, kernel_shape=[16, 16])
    return w.file(w.op("Gemm", w.op("Flatten", x), w.weight(5, 8), w.weight(5), transB=1))


def inception() -> bytes:
    """Four branches of GoogLeNet: pools with uneven pads, a mean that counts its pads, Sum of three, Concat."""
    w = Writer(opset=9, names="inception_3a/")
    x = w.op("Relu", w.conv(w.input([2, 3, 17, 17]), 3, 8))
    x = w.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    a, b = w.conv(x, 8, 4, 1), w.conv(w.op("Relu", w.conv(x, 8, 4, 1)), 4, 4, 5)
    c = w.conv(w.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 8, 4, 1)
    d = w.conv(w.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1), 8, 4, 1)
    x = w.op("Concat", w.op("Relu", w.op("Sum", a, b, c)), d, axis=1)
    x = w.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    return w.file(w.op("Gemm", w.op("Flatten", w.op("GlobalMaxPool", x)), w.weight(5, 8), w.weight(5), transB=1))


def shuffle() -> bytes:
    """ShuffleNet: channels are shuffled by Reshape to five axes with the batch of 1 in its target; Split and Concat."""
    w = Writer(opset=9, names="stage2/")
    x = w.op("Relu", w.conv(w.input([1, 3, 16, 16]), 3, 8, strides=[2, 2]))
    for _ in range(2):
        left, right = w.ops("Split", x, into=[w.fresh("left"), w.fresh("right")], axis=1, split=[4, 4])
        right = w.op("Relu", w.conv(w.conv(right, 4, 4, group=4), 4, 4, 1))
        x = w.op("Reshape", w.op("Concat", left, right, axis=1), w.ints(1, 2, 4, 8, 8))
        x = w.op("Reshape", w.op("Transpose", x, perm=[0, 2, 1, 3, 4]), w.ints(1, 8, 8, 8))
    x = w.op("Reshape", w.op("GlobalAveragePool", x), w.ints(1, 8))
    return w.file(w.op("Gemm", x, w.weight(5, 8), w.weight(5), transB=1))


def upsample_and_crop() -> bytes:
    """FCN: Upsample of opset 9, a grouped transposed convolution, a crop by Slice with attributes."""
    w = Writer(opset=9, names="score-")
    x = w.op("Relu", w.conv(w.input([1, 3, 20, 20]), 3, 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    deep = w.conv(w.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 8, 4, 1)
    deep = w.op("Upsample", deep, w.const([1, 1, 2, 2], np.float32), mode="nearest")
    x = w.op("Add", w.conv(x, 8, 4, 1), deep)
    x = w.op("ConvTranspose", x, w.weight(4, 1, 4, 4), strides=[2, 2], group=4, kernel_shape=[4, 4])
    return w.file(w.op("Slice", x, axes=[2, 3], starts=[1, 1], ends=[21, 21]))
