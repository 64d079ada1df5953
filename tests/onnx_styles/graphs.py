"""Habits of many exporters: preparation inside the graph, several outputs, known branches, many nodes, opsets."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tests.onnx_styles.writer import Writer

OPSETS = (7, 9, 10, 11, 12, 13, 18, 23)  # those that changed an operator of :func:`of_opset`, and the newest


def _branch(name: str, kind: str, read: str, **attributes: object) -> GraphProto:
    made = helper.make_node(kind, [read], [f"{name}_out"], **attributes)
    infos = [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)]
    return helper.make_graph([made], name, [], infos)


def branch_on_a_constant() -> bytes:
    """An If whose condition is a constant of the file."""
    w = Writer(opset=12, names="If_")
    x = w.op("Relu", w.conv(w.input(["n", 3, 8, 8]), 3, 4))
    branches = {"then_branch": _branch("then", "Neg", x), "else_branch": _branch("else", "Abs", x)}
    x = w.op("If", w.const(False), **branches)
    return w.file(w.conv(x, 4, 4))


def branch_on_a_shape() -> bytes:
    """torch's older exporter writes squeeze(2) so: If the axis has one element, Squeeze, else Identity."""
    w = Writer(opset=11, names="If_")
    x = w.op("GlobalAveragePool", w.op("Relu", w.conv(w.input(["n", 3, 8, 8]), 3, 4)))
    for axis in (3, 2):
        length = w.op("Gather", w.op("Shape", x), w.const(axis, np.int64), axis=0)
        one = w.op("Equal", length, w.const(1, np.int64))
        then = _branch(f"then{axis}", "Squeeze", x, axes=[axis])
        x = w.op("If", one, then_branch=then, else_branch=_branch(f"else{axis}", "Identity", x))
    return w.file(w.dense(x, 4, 5))


def branch_in_a_branch() -> bytes:
    """An If within an If, whose body has weights of its own and reads values of both graphs outside."""
    w = Writer(opset=13, names="If_")
    x = w.op("Relu", w.conv(w.input(["n", 3, 8, 8]), 3, 4))
    inner = Writer(opset=13, names="inner_")
    y = inner.op("Mul", "twice", inner.weight(4, 1, 1))
    deep = helper.make_graph(inner.nodes, "deep", [], [helper.make_tensor_value_info(y, 1, None)], inner.initializers)
    outer = Writer(opset=13, names="outer_")
    outer.op("Add", x, x, into="twice")
    result = outer.op("If", "yes", then_branch=deep, else_branch=_branch("no", "Identity", "twice"))
    outer_graph = helper.make_graph(outer.nodes, "then", [], [helper.make_tensor_value_info(result, 1, None)])
    w.const(True, name="yes")
    x = w.op("If", "yes", then_branch=outer_graph, else_branch=_branch("else", "Identity", x))
    return w.file(w.conv(x, 4, 4))


def old_torch() -> bytes:
    """torch 1.x: view(x.size(0), -1) as Shape, Gather, Unsqueeze, Concat; numbers as names of values."""
    w = Writer(opset=11, names=None, in_nodes=True)
    x = w.op("Relu", w.conv(w.input(["batch_size", 3, 16, 16], name="input.1"), 3, 8, strides=[2, 2]), into="17")
    x = w.op("MaxPool", x, into="18", kernel_shape=[2, 2], strides=[2, 2])
    first = w.op("Gather", w.op("Shape", x), w.const(0, np.int64), axis=0)
    parts = [w.op("Unsqueeze", each, axes=[0]) for each in (first, w.const(-1, np.int64))]
    x = w.op("Reshape", x, w.op("Concat", *parts, axis=0), into="27")
    return w.file(w.op("Gemm", x, w.weight(5, 128, name="fc.weight"), w.weight(5, name="fc.bias"), transB=1))


def long_chain(nodes: int) -> bytes:
    """A chain of ``nodes`` without names, between two convolutions."""
    w = Writer(opset=13, names=None)
    x = w.conv(w.input(["n", 3, 4, 4]), 3, 4)
    half = w.const(np.float32(0.25))
    for _ in range(nodes // 2):
        x = w.op("Add", w.op("Tanh", x), half)
    return w.file(w.conv(x, 4, 2))


def of_opset(opset: int) -> bytes:
    """One network in the operators of ``opset``: what was an attribute became an input, and names changed."""
    w = Writer(opset=opset, names="n", ir=3 if opset < 9 else 8)

    def shaped(kind: str, x: str, axes: list[int], since: int, **more: int) -> str:
        return w.op(kind, x, w.ints(*axes), **more) if (opset >= since) else w.op(kind, x, axes=axes, **more)

    x = w.norm(w.conv(w.input(["n", 3, 16, 16]), 3, 8, bias=False), 8)
    limits = [w.const(np.float32(limit)) for limit in (0, 6)]
    x = w.op("Clip", x, *limits) if opset >= 11 else w.op("Clip", x, min=0.0, max=6.0)
    ends = [0, 0, 1, 1, 0, 0, 1, 1]
    x = w.op("Pad", x, w.ints(*ends)) if opset >= 11 else w.op("Pad", x, pads=ends)
    window = ([0, 1], [8, 17], [1, 2])
    given = [w.ints(*each) for each in (window[0], window[1], window[2])]
    x = w.op("Slice", x, *given) if opset >= 10 else w.op("Slice", x, starts=window[0], ends=window[1], axes=window[2])
    x = w.op("MaxPool", w.conv(x, 8, 8, strides=[2, 2]), kernel_shape=[2, 2], strides=[2, 2])
    left, right = w.fresh("left"), w.fresh("right")
    parts = w.ops("Split", x, w.ints(4, 4), into=[left, right], axis=1) if opset >= 13 else w.ops(
        "Split", x, into=[left, right], axis=1, split=[4, 4])  # fmt: skip
    x = w.op("Concat", *parts[::-1], axis=1)
    scales = w.const([1, 1, 2, 2], np.float32)
    if opset >= 10:
        read = [w.const(np.zeros(0), np.float32), scales] if opset >= 11 else [scales]
        way = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if opset >= 11 else {}
        x = w.op("Resize", x, *read, mode="nearest", **way)
    elif opset == 9:
        x = w.op("Upsample", x, scales, mode="nearest")
    else:
        x = w.op("Upsample", x, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest")
    x = shaped("ReduceMean", x, [2, 3], 18, keepdims=1)
    x = shaped("Unsqueeze", shaped("Squeeze", x, [2, 3], 13), [1], 13)
    x = shaped("ReduceSum", x, [1], 13, keepdims=0)
    x = w.op("Dropout", x, w.const(np.float32(0.5))) if opset >= 12 else w.op("Dropout", x, ratio=0.5)
    return w.file(w.op("Softmax", w.op("Gemm", x, w.weight(8, 5), w.weight(5)), axis=1))
