"""QDQ files of a float network: QuantizeLinear and DequantizeLinear inserted around nodes in int8, others in float.

Activations have 8 unsigned bits and a scale per tensor, weights 8 signed bits and a scale per output channel, biases 32
bits. Values between two nodes in float are not rounded. Nodes behind the last weights, which join boxes and scores or
choose classes, stay in float. A Relu or Clip that alone reads a rounded tensor becomes the range of its output; a
pooling and the like in int8 rounds to the range of its input.

Nodes in float may have weights of 8 bits, which a ``Cast`` and a ``Mul`` make float when a runtime opens the file (see
:mod:`..integer_weights`). The smallest weights stay in 32 bits: in EfficientNet-Lite0, 19 of 50 weights take 1.6 % of
the bytes and do two thirds of the harm.

Source of the rules by which a tensor is rounded: ``onnxruntime/quantization/operators`` (classes ``QDQ…``).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.networks.onnx.graph import OnnxGraph, attributes_of
from senseapp.runtimes.onnxruntime.integer_weights import unpacking
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, activation_grid
from senseapp.runtimes.onnxruntime.rounding.weights import BIAS_STEPS, RoundedProduct

ROUNDING = ("QuantizeLinear", "DequantizeLinear")
"""What turns values into integers and back."""
UNPACKED = ".unpacked"
"""Behind the name of a weight in 8 bits, where a node in float reads it."""
_AFTER, _CODES = "_DequantizeLinear_Output", "_QuantizeLinear_Output"  # behind the name of a tensor that is rounded
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Products, with a weight as second input."""
FUSED = ("Clip", "Relu")
"""What is computed with the node before it."""
SAME_RANGE = frozenset(
    {
        *("AveragePool", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape", "Resize", "Slice", "Split"),
        *("Squeeze", "TopK", "Transpose", "Unsqueeze"),
    }
)
"""Operators that round their output as their input is."""
_IF_ROUNDED = (SAME_RANGE - {"Split"}) | {"Where", *FUSED}
"""Operators that stay in float where what they read is not rounded."""
_WITH_CONSTANTS = frozenset({"Add", "Mul", "Concat", "Pad", "MatMul"})
"""Operators whose constants are rounded as activations are."""
QUANTIZED = frozenset(
    {*SAME_RANGE, *_WITH_CONSTANTS, *WEIGHTED, *FUSED}
    | {"ArgMax", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax", "Where"}
)
"""Kinds of nodes that can be in int8."""
_FREE_BYTES = 0.05  # of those of all weights in 8 bits, that the smallest weights may add in 32
_SEVEN_BITS = 64  # largest integer of weights that are not fitted: no sum of two products with 8 bits exceeds 16

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What an int8 file rounds to: ranges of activations that 8 bits span, and fitted weights and biases by node.

    Other weights are rounded to the nearest of 7 bits.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    products: Mapping[str, RoundedProduct] = field(default_factory=dict)


class _File(OnnxGraph):
    """A file of ``network`` that is being written: nodes in int8 and in float, tensors that are rounded, and ranges."""

    def __init__(self, network: OnnxGraph, in_float: set[str], ranges: Mapping[str, Range]) -> None:
        super().__init__(network.model)
        self.in_float, self.ranges = in_float, dict(ranges)
        self.in_int8, self.rounded = set[str](), set[str]()
        self.initializers = dict(network.initializers)
        self._first: dict[str, Sequence[NodeProto]] = {}

    def stored(self, name: str, values: Array) -> str:
        """Store a constant, and return its name."""
        self.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def grid_of(self, name: str) -> tuple[Array, Array]:
        """Return zero point and scale of an activation."""
        return activation_grid(*self.ranges[name])

    def grid(self, name: str, zero_point: Array, scale: Array) -> list[str]:
        """Store scale and zero point of a tensor, and return their names."""
        return [self.stored(f"{name}_scale", scale), self.stored(f"{name}_zero_point", zero_point)]

    def dequantized(
        self, name: str, integers: Array, scale: Array, *, axis: int | None = None, zero_point: Array | None = None
    ) -> str:
        """Return the name of a constant in float, made of integers where it is read; no zero point is 0."""
        result = name + _AFTER
        if result not in self._first:
            zero_point = np.zeros(scale.shape, integers.dtype) if zero_point is None else zero_point
            given = [self.stored(f"{name}_quantized", integers), *self.grid(name, zero_point, scale)]
            by: dict[str, Any] = {} if axis is None else {"axis": axis}
            self._first[result] = [helper.make_node(ROUNDING[1], given, [result], f"{name}_{ROUNDING[1]}", **by)]
        return result

    def unpacked(self, name: str, weight: RoundedProduct) -> str:
        """Return the name of a weight in float that runtimes make of integers when they open the file."""
        integers, result = self.stored(f"{name}_quantized", weight.integers), f"{name}{UNPACKED}"
        self._first[result] = unpacking(result, integers, self.stored(f"{result}.scale", weight.spread))
        return result

    def content(self) -> bytes:
        """Return the bytes of the file, without rounding and constants that nothing reads."""
        self.nodes = [*chain(*self._first.values()), *self.nodes]
        self.prune()
        return super().content()


class QdqFiles:
    """The QDQ files of a float ``network``: plain, with a name for each node and constants as initializers."""

    def __init__(self, network: bytes, rounding: Rounding) -> None:
        self._graph, self._products, self._ranges = OnnxGraph(network), rounding.products, dict(rounding.ranges)
        self._tail = self._behind_the_last_weights()
        self._folded = {node.name: node for node in self._graph.nodes if self._can_be_folded(node)}
        self._output_of = {node.input[0]: node.output[0] for node in self._folded.values()}
        self._ranges |= {name: self._ranges[made] for name, made in self._output_of.items() if made in self._ranges}

    @property
    def in_int8(self) -> set[str]:
        """The nodes that compute in int8 where all do."""
        return self._plan(set()).in_int8

    def rounded(self, in_float: Collection[str] = ()) -> list[str]:
        """Return the tensors that a file with these nodes in float rounds."""
        return sorted(self._plan(self._with_fused(in_float)).rounded)

    def content(self, in_float: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the file in which the nodes ``in_float`` compute in float, and all others that can in int8.

        So do ``weights_only``, with weights stored in 8 bits where these are not small.
        """
        file = self._plan(self._with_fused({*in_float, *weights_only}))
        stored = set(weights_only).difference(in_float, self._small)
        for name in self._graph.inputs:
            self._round(file, name)
        for node in self._graph.nodes:
            if node.name in self._folded and node.name in file.in_int8:
                continue
            own = NodeProto()
            own.CopyFrom(node)
            own.input[:] = [self._read(node, place, file) for place in range(len(node.input))]
            if node.name in file.in_int8:
                own.output[0] = self._made_by(node, file)
            elif node.name in stored and node.name in self._weights:
                weight = self._weights[node.name]
                own.input[1] = file.unpacked(node.input[1], weight)
                if weight.float_bias is not None:
                    own.input[2] = file.stored(f"{node.input[2]}{UNPACKED}", weight.float_bias)
            file.nodes.append(own)
            for name in (own.output[0], *node.output[1:]):
                self._round(file, name)
        return file.content()

    # ---- which nodes are in int8, and which tensors are rounded

    def _plan(self, in_float: set[str]) -> _File:
        plan = _File(self._graph, in_float, self._ranges)
        for node in self._graph.nodes:
            if node.op_type not in QUANTIZED or node.name in self._tail or node.name in in_float or _is_scaled(node):
                continue
            needed = node.input[1:3] if node.op_type == "Where" else node.input[:1]
            if node.op_type in _IF_ROUNDED and not plan.rounded.issuperset(needed):
                continue
            if node.op_type in WEIGHTED and node.input[0] not in {*self._ranges, *self._graph.initializers}:
                continue
            read = node.input[:2] if node.op_type in WEIGHTED else node.input
            if not (touched := self._ranges.keys() & {*read, *node.output}):
                continue
            plan.in_int8.add(node.name)
            plan.rounded |= touched
            if node.input[0] in plan.ranges and self._keeps_range(node):
                plan.ranges |= dict.fromkeys(touched.intersection(node.output), plan.ranges[node.input[0]])
            if node.name in self._folded:
                plan.rounded.discard(node.input[0])
        plan.rounded.difference_update(self._graph.outputs)
        return plan

    def _behind_the_last_weights(self) -> set[str]:
        """Return the nodes whose results are multiplied with no weights, and convolutions that make an output."""
        outputs = set(self._graph.outputs)
        found, needed = set[str](), set[str]()
        for node in reversed(self._graph.nodes):
            weighted = node.op_type in WEIGHTED and node.input[1] in self._graph.initializers
            if weighted or not needed.isdisjoint(node.output):
                needed.update(node.input)
            else:
                found.add(node.name)
            if node.op_type in WEIGHTED[:2] and not outputs.isdisjoint(node.output):  # which need a rounded output
                found.add(node.name)
        return found

    def _can_be_folded(self, node: NodeProto) -> bool:
        maker = self._graph.maker(node.input[0]) if node.op_type in FUSED else None
        if maker is None or node.name in self._tail or maker.output[0] != node.input[0]:
            return False
        low, high = (self._graph.array(name) for name in (*node.input[1:], "", "")[:2])
        holds_zero = (low is None or low <= 0) and (high is None or high >= 0)  # as every range does
        return bool(holds_zero) and self._graph.is_read_once(node.input[0])

    def _keeps_range(self, node: NodeProto) -> bool:
        if node.op_type != "Pad":
            return node.op_type in SAME_RANGE
        value = self._graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(())
        return attributes_of(node).get("mode", b"constant") != b"constant" or (value is not None and not value.any())

    def _with_fused(self, in_float: Collection[str]) -> set[str]:
        """Return the nodes in float with the activations that follow them."""
        found = set(in_float) - self._folded.keys()
        for node in self._graph.nodes:  # in order, so that what follows what follows is reached too
            maker = self._graph.maker(node.input[0]) if node.op_type in FUSED else None
            if maker is not None and maker.name in found:
                found.add(node.name)
        return found

    # ---- nodes of a file

    def _read(self, node: NodeProto, place: int, file: _File) -> str:
        """Return what an input of a node reads in a file."""
        name: str = node.input[place]
        if name in self._graph.initializers:
            return self._constant(node, place, file) if node.name in file.in_int8 else name
        maker = self._graph.maker(name)
        apart = node.name in file.in_float and maker is not None and maker.name in file.in_float
        if apart or name not in file.rounded:
            return name
        if place == 0 and node.name not in file.in_int8 and node.op_type in WEIGHTED[:3]:
            return self._by_channel(node, file)
        return name + _AFTER

    def _constant(self, node: NodeProto, place: int, file: _File) -> str:
        name: str = node.input[place]
        if self._graph.initializers[name].data_type != TensorProto.FLOAT:
            return name
        weight = self._weights.get(node.name)
        if weight is not None and place == 1:
            return file.dequantized(name, weight.integers, weight.scale, axis=weight.axis)
        if weight is not None and place == 2 and node.input[0] in self._ranges:
            return self._bias(node, weight, file)
        if node.op_type not in _WITH_CONSTANTS:
            return name
        values = numpy_helper.to_array(self._graph.initializers[name])
        zero_point, scale = activation_grid(float(values.min(initial=0)), float(values.max(initial=0)))
        integers = (np.round(values / scale) + zero_point).clip(0, 255).astype(np.uint8)
        return file.dequantized(f"{name}.rounded", integers, scale, zero_point=zero_point)

    def _bias(self, node: NodeProto, weight: RoundedProduct, file: _File) -> str:
        values = self._graph.array(node.input[2]) if weight.bias is None else weight.bias
        assert values is not None
        scale, limits = np.asarray(file.grid_of(node.input[0])[1] * weight.scale, np.float32), np.iinfo(np.int32)
        integers = (values.astype(np.float64) / scale).round().clip(limits.min, limits.max).astype(np.int32)
        return file.dequantized(f"{node.name}.bias", integers, scale, axis=0 if scale.ndim else None)

    def _made_by(self, node: NodeProto, file: _File) -> str:
        """Return the first output of a node in int8, or what the activations behind it make."""
        name: str = node.output[0]
        while name in self._output_of and self._graph.readers(name)[0].name in file.in_int8:
            name = self._output_of[name]
        return name

    def _round(self, file: _File, name: str) -> None:
        """Add the nodes that round a tensor, where it is rounded."""
        if name in file.rounded:
            given = file.grid(name, *file.grid_of(name))
            file.nodes.append(helper.make_node(ROUNDING[0], [name, *given], [name + _CODES], f"{name}_{ROUNDING[0]}"))
            given = [name + _CODES, *given]
            file.nodes.append(helper.make_node(ROUNDING[1], given, [name + _AFTER], f"{name}_{ROUNDING[1]}"))

    def _by_channel(self, node: NodeProto, file: _File) -> str:
        """Return the input of a product in float, with a scale for each channel: the one scale, repeated.

        onnxruntime rounds the weights of a float product itself, with one scale for the whole tensor, where its input
        comes from 8 bits and its output goes to 8 bits. It leaves those alone whose input has a scale for each channel.

        Source: onnxruntime, ``core/optimizer/qdq_transformer/weight_bias_quantization.cc``.
        """
        name: str = node.input[0]
        if (weight := self._graph.tensor(node.input[1])) is None:
            return name + _AFTER
        attributes = attributes_of(node)
        groups = attributes.get("group", 1) if node.op_type == "Conv" else 1
        channels = groups * weight.dims[1 if node.op_type == "Conv" or attributes.get("transB", 0) else 0]
        result = f"{node.name}.input"
        given = [name + _CODES, *file.grid(result, *(np.resize(each, channels) for each in file.grid_of(name)))]
        file.nodes.append(helper.make_node(ROUNDING[1], given, [result], f"{node.name}.dequantize", axis=1))
        return result

    # ---- integers

    @cached_property
    def _weights(self) -> dict[str, RoundedProduct]:
        """The weight of each product, by node."""
        found, nearest = dict(self._products), dict[str, RoundedProduct]()
        for node in self._graph.nodes:
            if node.op_type in WEIGHTED and node.name not in found and node.input[1] in self._graph.initializers:
                if node.input[1] not in nearest:
                    nearest[node.input[1]] = self._nearest(node.input[1], node)
                found[node.name] = nearest[node.input[1]]
        return found

    def _nearest(self, name: str, first: NodeProto) -> RoundedProduct:
        """Return the integers of 7 bits that are nearest to a weight, with scales at which biases fit in 32 bits."""
        values = numpy_helper.to_array(self._graph.initializers[name]).astype(np.float64)
        axis = _channel_axis(first, values.ndim)
        scale = np.abs(values).max(axis=None if axis is None else tuple({*range(values.ndim)} - {axis})) / _SEVEN_BITS
        for node in self._graph.readers(name):
            bias = self._graph.array(node.input[2]) if len(node.input) > 2 and node.op_type in WEIGHTED else None
            if bias is not None and node.input[0] in self._ranges:
                least = np.abs(bias) / (BIAS_STEPS * activation_grid(*self._ranges[node.input[0]])[1])
                scale = np.maximum(scale, least.max() if axis is None else least)
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, 1.0).astype(np.float32)
        steps = np.round(values / RoundedProduct(integers=values, scale=scale, axis=axis).spread)
        return RoundedProduct(integers=steps.clip(-_SEVEN_BITS, _SEVEN_BITS).astype(np.int8), scale=scale, axis=axis)

    @cached_property
    def _small(self) -> frozenset[str]:
        """The nodes with the smallest weights, which in 32 bits together add next to nothing to the file."""
        ranked = sorted(self._weights, key=lambda name: self._weights[name].integers.size)
        sizes = [self._weights[name].integers.size for name in ranked]
        most = _FREE_BYTES / 3 * sum(sizes)  # of a weight in 32 bits, beside one in 8
        return frozenset(name for name, size in zip(ranked, accumulate(sizes), strict=True) if size <= most)


def rounded_tensors(network: bytes, in_float: Collection[str] = ()) -> list[str]:
    """Return the tensors that a file with these nodes in float rounds, as far as they hold numbers in float."""
    graph = OnnxGraph(network)
    names = {name for node in graph.nodes for name in (*node.input, *node.output) if name}
    whole = Rounding(ranges=dict.fromkeys(names - graph.initializers.keys(), (0.0, 1.0)))
    return QdqFiles(network, whole).rounded(in_float)


def _is_scaled(node: NodeProto) -> bool:
    """Return whether a Gemm has factors, or reads a turned input: kernels for integers take none."""
    found = attributes_of(node) if node.op_type == "Gemm" else {}
    return found.get("alpha", 1) != 1 or found.get("beta", 1) != 1 or bool(found.get("transA", 0))


def _channel_axis(node: NodeProto, rank: int) -> int | None:
    """Return the axis of output channels of a weight with ``rank`` axes; None where one scale must do."""
    attributes = attributes_of(node)
    if rank < 2 or (node.op_type == "MatMul" and rank > 2):
        return None
    if node.op_type == "ConvTranspose":  # with groups, this axis has the channels of one
        return 1 if attributes.get("group", 1) == 1 else None
    return 0 if node.op_type == "Conv" or attributes.get("transB", 0) else 1
