"""Times of single layers and of the operations between them in a runtime, in float and in int8, by their shapes.

Layers are timed as in :mod:`senseapp.runtimes.onnxruntime.timing`, in files of layers that do not depend on each other.
An operation between layers is timed on a tensor of usual size, between two convolutions in float and in int8, as what
it adds to these two: what is computed with the convolution before it adds nothing, what needs another order of memory,
or is computed in float between roundings, adds these too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from senseapp.records.probe import GlueCost, GlueKind, LayerShape, ProbedCosts, ShapeCost
from senseapp.runtimes.onnxruntime.bench import (
    OPSET,
    LayerNode,
    Profiler,
    border_seconds,
    product_bench,
    timed_products,
)

# features in the middle of a network; tokens of a ViT-S for 224 pixels
_IMAGE, _TOKENS = (1, 64, 40, 40), (1, 197, 384)
# queries, keys and scores of three heads of a ViT
_HEADS, _HEADS_TURNED, _SCORES = (1, 3, 197, 64), (1, 3, 64, 197), (1, 3, 197, 197)
_SHARE = 0.0
"""Of the runs of a kernel, which are quicker than what is taken as its time: the quickest counts, as other programs
interrupt nearly every long one on a busy machine."""


def probe(
    layers: Sequence[LayerShape], glue: Sequence[GlueKind], *, profiler: Profiler, threads: int = 1
) -> ProbedCosts:
    """Return the seconds of each of ``layers`` that ONNX has a product for, and of kinds of ``glue``."""
    known = [(shape, product) for shape in layers if (product := _product(shape)) is not None]
    products = [product for _, product in known]
    costs: list[ShapeCost] = []
    border = 0.0
    if products:
        real, rates = timed_products(
            product_bench(products, int8=False), len(products), profiler, threads, share=_SHARE
        )
        whole, int8_rates = timed_products(
            product_bench(products, int8=True), len(products), profiler, threads, share=_SHARE
        )
        costs = [
            ShapeCost(shape=shape, float_seconds=one, int8_seconds=other)
            for (shape, _), one, other in zip(known, real, whole, strict=True)
        ]
        border = border_seconds(rates | int8_rates, 2)
    return ProbedCosts(layers=tuple(costs), glue=_glue_costs(glue, profiler, threads), border_seconds=border)


def _product(shape: LayerShape) -> LayerNode | None:
    """Return a layer as a node of its own; None for what is no convolution and no linear layer of images."""
    weight, inputs = shape.weight, shape.input_shape
    if len(weight) == 2 and inputs and inputs[-1] == weight[1]:
        outputs = (*inputs[:-1], weight[0])
        if len(inputs) == 1:
            node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
            return LayerNode(node=node, weight=_constant(weight), input_shape=(1, *inputs), output_shape=(1, *outputs))
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        return LayerNode(
            node=node, weight=_constant(weight[::-1]), input_shape=(1, *inputs), output_shape=(1, *outputs)
        )
    kernel = weight[2:]
    if not kernel or len(inputs) != len(kernel) + 1 or len(shape.output_shape) != len(inputs) or inputs[0] % weight[1]:
        return None
    strides = [max(1, round(size / out)) for size, out in zip(inputs[1:], shape.output_shape[1:], strict=True)]
    missing = [
        max(0, (out - 1) * stride + window - size)
        for size, out, stride, window in zip(inputs[1:], shape.output_shape[1:], strides, kernel, strict=True)
    ]
    pads = [size // 2 for size in missing] + [size - size // 2 for size in missing]
    outputs = tuple(
        (size + more - window) // stride + 1
        for size, more, window, stride in zip(inputs[1:], missing, kernel, strides, strict=True)
    )
    groups = inputs[0] // weight[1]
    if min(outputs) < 1 or weight[0] % groups:
        return None
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=groups, strides=strides, pads=pads)
    return LayerNode(
        node=node, weight=_constant(weight), input_shape=(1, *inputs), output_shape=(1, weight[0], *outputs)
    )


def _constant(dims: Sequence[int]) -> TensorProto:
    """Return a weight of that shape; a bench makes up its values."""
    return TensorProto(dims=dims, data_type=TensorProto.FLOAT)


# ---- between layers

_Make = Callable[["_ProbeGraph"], None]


class _ProbeGraph:
    """A small network of convolutions of one channel each with an operation between them, in float or in int8."""

    def __init__(self, *, int8: bool) -> None:
        self._int8 = int8
        self._inputs, self._outputs = list[ValueInfoProto](), list[ValueInfoProto]()
        self._nodes = list[NodeProto]()
        self._constants: dict[str, NDArray[Any]] = {
            "scale": np.array(0.02, np.float32),
            "zero": np.array(128, np.uint8),
        }

    def input(self, *shape: int) -> str:
        """Return an input of that shape."""
        name = f"in{len(self._inputs)}"
        self._inputs.append(helper.make_tensor_value_info(name, self._type, shape))
        return self._real(name)

    def node(self, kind: str, *inputs: str, rounds: bool = True, **attributes: Any) -> str:
        """Return what an operation returns, in int8 rounded and in float again; ``rounds`` is whether it is."""
        output = f"out{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return self._real(self._rounded(output)) if rounds else output

    def conv(self, value: str) -> str:
        """Add a depthwise convolution of 1 × 1 to ``value``; return the name of its output."""
        weight = self.constant(np.ones((_IMAGE[1], 1, 1, 1), np.float32))
        return self.node("Conv", value, weight, group=_IMAGE[1])

    def constant(self, values: NDArray[Any]) -> str:
        """Return a constant; weights are integers in int8."""
        name = f"constant{len(self._constants)}"
        if self._int8 and values.ndim == len(_IMAGE):
            self._constants[name] = values.astype(np.int8)
            self._nodes.append(helper.make_node("DequantizeLinear", [name, "scale"], [f"{name}.real"]))
            return f"{name}.real"
        self._constants[name] = values
        return name

    def ends(self, output: str) -> None:
        """Make a tensor an output."""
        name = self._rounded(output)
        self._outputs.append(helper.make_tensor_value_info(name, self._type, None))

    def seconds(self, profiler: Profiler, threads: int) -> float:
        """Return the seconds of all kernels."""
        constants = [numpy_helper.from_array(values, name) for name, values in self._constants.items()]
        graph = helper.make_graph(self._nodes, "glue", self._inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        content = onnx.shape_inference.infer_shapes(model).SerializeToString()
        return sum(kernel.seconds for kernel in profiler.kernels(content, threads, 1, _SHARE))

    @property
    def _type(self) -> int:
        return int(TensorProto.UINT8 if self._int8 else TensorProto.FLOAT)

    def _real(self, name: str) -> str:
        if not self._int8:
            return name
        self._nodes.append(helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}.real"]))
        return f"{name}.real"

    def _rounded(self, name: str) -> str:
        if not self._int8:
            return name
        rounded = f"{name}.rounded{len(self._nodes)}"
        self._nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [rounded]))
        return rounded


def _convs(graph: _ProbeGraph) -> None:
    graph.ends(graph.conv(graph.conv(graph.input(*_IMAGE))))


def _three_convs(graph: _ProbeGraph) -> None:
    graph.ends(graph.conv(graph.conv(graph.conv(graph.input(*_IMAGE)))))


def _between(make: Callable[[_ProbeGraph, str], str]) -> _Make:
    """Return what puts an operation between two convolutions."""

    def build(graph: _ProbeGraph) -> None:
        graph.ends(graph.conv(make(graph, graph.conv(graph.input(*_IMAGE)))))

    return build


def _alone(kind: str, *shapes: tuple[int, ...]) -> _Make:
    """Return what makes an operation alone, on inputs of these shapes."""

    def build(graph: _ProbeGraph) -> None:
        graph.ends(graph.node(kind, *(graph.input(*shape) for shape in shapes), rounds=False))

    return build


def _sum(graph: _ProbeGraph) -> None:
    first = graph.conv(graph.input(*_IMAGE))
    graph.ends(graph.conv(graph.node("Add", first, graph.conv(first))))


def _mean(graph: _ProbeGraph) -> None:
    first = graph.conv(graph.input(*_IMAGE))
    graph.ends(graph.conv(first))
    graph.ends(graph.node("ReduceMean", first, graph.constant(np.array([2, 3])), keepdims=1, rounds=False))


def _hardswish(graph: _ProbeGraph, value: str) -> str:
    """Return what onnxruntime makes of HardSwish, which it has no kernel for."""
    gate = graph.node("HardSigmoid", value, alpha=1 / 6, rounds=False)
    return graph.node("Mul", value, gate)


def _layer_norm(graph: _ProbeGraph) -> None:
    size = _TOKENS[-1]
    gain, shift = graph.constant(np.ones(size, np.float32)), graph.constant(np.zeros(size, np.float32))
    graph.ends(graph.node("LayerNormalization", graph.input(*_TOKENS), gain, shift, rounds=False))


_GLUE: Mapping[GlueKind, tuple[_Make, _Make | None, int]] = {
    "add": (_sum, _three_convs, math.prod(_IMAGE)),
    "mul": (
        _between(lambda graph, value: graph.node("Mul", value, graph.input(1, _IMAGE[1], 1, 1))),
        _convs,
        math.prod(_IMAGE),
    ),
    "silu": (
        _between(lambda graph, value: graph.node("Mul", value, graph.node("Sigmoid", value))),
        _convs,
        math.prod(_IMAGE),
    ),
    "hardswish": (_between(_hardswish), _convs, math.prod(_IMAGE)),
    "hardsigmoid": (
        _between(lambda graph, value: graph.node("HardSigmoid", value, alpha=1 / 6)),
        _convs,
        math.prod(_IMAGE),
    ),
    "sigmoid": (_between(lambda graph, value: graph.node("Sigmoid", value)), _convs, math.prod(_IMAGE)),
    "pool": (_mean, _convs, math.prod(_IMAGE)),
    "gelu": (_alone("Gelu", _TOKENS), None, math.prod(_TOKENS)),
    "softmax": (_alone("Softmax", _SCORES), None, math.prod(_SCORES)),
    "layer_norm": (_layer_norm, None, math.prod(_TOKENS)),
    "matmul": (_alone("MatMul", _HEADS, _HEADS_TURNED), None, math.prod(_HEADS) * _SCORES[-1]),
}
"""How each kind is made, what is made without it, and the values that it is timed on."""


def _glue_costs(kinds: Sequence[GlueKind], profiler: Profiler, threads: int) -> tuple[GlueCost, ...]:
    """Return what each kind adds to the convolutions around it, with the roundings that it needs."""
    known: dict[tuple[_Make, bool], float] = {}

    def seconds(make: _Make | None, *, int8: bool) -> float:
        if make is None:
            return 0.0
        if (make, int8) not in known:
            graph = _ProbeGraph(int8=int8)
            make(graph)
            known[make, int8] = graph.seconds(profiler, threads)
        return known[make, int8]

    found = []
    for kind in kinds:
        if kind not in _GLUE:
            continue
        make, without, values = _GLUE[kind]
        real, whole = (max(0.0, seconds(make, int8=int8) - seconds(without, int8=int8)) for int8 in (False, True))
        found.append(GlueCost(kind=kind, float_seconds=real / values, int8_seconds=whole / values))
    return tuple(found)
