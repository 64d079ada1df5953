"""Int8 files of which some nodes compute in float, put together from a network and its file all in int8.

onnxruntime's quantizer works through the whole network for each file. Here it has done so once: what it rounds, how,
and which activations it folds into ranges is read from its file, and nodes are put back into float by rewiring. What
passes from one node in float to another is not rounded between them, nor is the network's output. A pooling and the
like rounds to the range of what it is given, also where that is not rounded.

The weights of a node in float may be those of the int8 file, stored in 8 bits: a ``Cast`` and a ``Mul`` by their scales
make them float, which runtimes do once, when they open the file (:mod:`.integer_weights` says why not
``DequantizeLinear``). So nodes in float make a file hardly larger. The smallest weights, as those
of depthwise convolutions, stay in 32 bits: in 8, they do as much harm as large ones (in EfficientNet-Lite0, the 19
smallest of 50 weights take 1.6 % of the bytes of all, and do two thirds of the harm).

Source of the rules by which a tensor is rounded: ``onnxruntime/quantization/operators`` (classes ``QDQ…``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper
from onnxruntime.quantization.quant_utils import compute_scale_zp
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

PRODUCTS_WITH_FLOAT_OUTPUT = ("Gemm", "MatMul")
"""What onnxruntime computes in int8 also where the output is not rounded."""
FUSED = ("Clip", "Relu")
"""What is computed with the node before it."""
QUANTIZED = {*QDQRegistry, *QLinearOpsRegistry}
"""Kinds of nodes that onnxruntime's quantizer puts into int8."""
MOVING = frozenset(
    {
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather", "Identity"),
        *("GatherElements", "Expand", "Tile", "Pad", "MaxPool"),
    }
)
"""Operators that only move numbers: what they read and make is rounded alike."""
_AS_GIVEN = (
    *("AveragePool", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze"),
    *("TopK", "Transpose", "Unsqueeze", "Where", *FUSED),
)
"""What rounds its output only where its input is rounded."""
BEFORE, _AFTER = "_QuantizeLinear_Input", "_DequantizeLinear_Output"
_IN_FLOAT = ".float"
_UNPACKED = ".unpacked"
"""Behind the name of a weight in 8 bits, or of a bias that goes with it, where a node in float reads it."""
_MORE_BYTES = 3  # of a weight in 32 bits, beside one in 8
_FREE_BYTES = 0.05  # of those of all weights in 8 bits, that the smallest weights may add in 32
_MOST_COARSER = 8.0  # steps of an input in one of the output: 32 of 256 are left to what it spans
_ROUNDED = ("Conv", "ConvTranspose", "Gemm")
_WEIGHTED = (*_ROUNDED, "MatMul")
_CHANNELS = 1  # axis of the input of all three


class PartlyInt8:
    """A float ``network`` and the file in which onnxruntime's quantizer put all of it into ``int8``.

    ``biases``, by node, go with weights of 8 bits where the input is not rounded; a node without keeps its own.
    """

    def __init__(
        self,
        network: onnx.GraphProto,
        int8: onnx.ModelProto,
        biases: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> None:
        self._float, self._int8, self._biases = network, int8, biases or {}
        graph = self._int8.graph
        self._float_constants = {each.name: each for each in self._float.initializer}
        self._int8_constants = {each.name: each for each in graph.initializer}
        self._outputs = {each.name for each in graph.output}
        by_source = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
        self._constants = {node.output[0]: node for source, node in by_source.items() if source in self._int8_constants}
        self._dequantizing = {node.output[0]: node for node in by_source.values()}
        self._rounded = {
            node.input[0].removesuffix(BEFORE): (node, by_source[node.output[0]])
            for node in graph.node
            if node.op_type == "QuantizeLinear"
        }
        self._nodes = {node.name: node for node in graph.node}
        self._folded = {node.name for node in self._float.node if node.name not in self._nodes}
        self._maker = {name: node for node in self._float.node for name in node.output}

    def content(self, in_float: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the file in which the nodes ``in_float`` compute in float, and all others as in the int8 file.

        So do ``weights_only``, with the weights of the int8 file where these have a symmetric grid and are not small.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._skeleton)
        state = self._marked(self._with_fused({*in_float, *weights_only}))
        nodes = [(node, self._rewired(node, state)) for node in self._float.node if node.name not in state.folded]
        read = {name for _, own in nodes for name in own.input} | self._outputs
        graph = model.graph
        graph.node.extend(each for name, each in self._constants.items() if name in read)
        for name in [each.name for each in graph.input]:
            graph.node.extend(self._rounding(name, state, read))
        for node, own in nodes:
            graph.node.append(own)
            for name in node.output:
                graph.node.extend(self._rounding(state.folded_into.get(name, name), state, read))
        self._add_constants(graph)
        compute_in_float(graph)
        self._store_integers(graph, set(weights_only).difference(in_float, self._small))
        return bytes(model.SerializeToString())

    @cached_property
    def coarse(self) -> tuple[str, ...]:
        """The nodes behind the last weights that are to stay in float, as int8 would destroy what they read.

        Their output has one scale for parts of unlike ranges, as a ``Concat`` of boxes in pixels and scores, the sum of
        both, or a product with a factor for each column: an input has more than ``_MOST_COARSER`` times finer steps. So
        do the nodes that read such an output, or what only moves its numbers, which has the same scale.
        """
        steps = {name: self._step(pair[0]) for name, pair in self._rounded.items()}
        found, unlike = list[str](), set[str]()
        for node in self._tail:
            fine = min((steps[name] for name in node.input if name in steps), default=math.inf)
            joins = any(steps.get(name, 0.0) > _MOST_COARSER * fine for name in node.output)
            reads = not unlike.isdisjoint(node.input)
            if joins or reads:
                found.append(node.name)
            if joins or (reads and node.op_type in MOVING):
                unlike.update(node.output)
        return tuple(found)

    def _step(self, rounding: NodeProto) -> float:
        return float(numpy_helper.to_array(self._int8_constants[rounding.input[1]]).max())

    @property
    def _tail(self) -> list[NodeProto]:
        """The nodes whose results are multiplied with no weights any more, in order."""
        found, needed = list[NodeProto](), set[str]()
        for node in reversed(self._float.node):
            weighted = node.op_type in _WEIGHTED and node.input[1] in self._float_constants
            if weighted or not needed.isdisjoint(node.output):
                needed.update(node.input)
            else:
                found.append(node)
        return found[::-1]

    @cached_property
    def _small(self) -> frozenset[str]:
        """The nodes with the smallest weights, which in 32 bits together add next to nothing to the file."""
        sizes = {
            name: math.prod(self._int8_constants[weight.input[0]].dims)
            for name in self._nodes
            if (weight := self._integers_of(name)) is not None
        }
        ranked = sorted(sizes, key=sizes.__getitem__)
        most = _FREE_BYTES / _MORE_BYTES * sum(sizes.values())
        return frozenset(
            name for name, size in zip(ranked, accumulate(map(sizes.__getitem__, ranked)), strict=True) if size <= most
        )

    @property
    def _skeleton(self) -> onnx.ModelProto:
        """The int8 file without nodes and constants."""
        found = onnx.ModelProto()
        found.CopyFrom(self._int8)
        del found.graph.node[:], found.graph.initializer[:]
        return found

    def _with_fused(self, in_float: Collection[str]) -> set[str]:
        """Return the nodes in float with the activations that follow them."""
        found = set(in_float) - self._folded
        for node in self._float.node:  # in order, so that what follows what follows is reached too
            maker = self._maker.get(node.input[0]) if node.op_type in FUSED else None
            if maker is not None and maker.name in found:
                found.add(node.name)
        return found

    def _marked(self, in_float: set[str]) -> _Marked:
        state = _Marked(in_float=in_float)
        between = {node.input[0] for node in self._float.node if node.name in self._folded}
        for node in self._float.node:
            if node.name in in_float or node.op_type not in QUANTIZED:
                continue
            needed = node.input[1:3] if node.op_type == "Where" else node.input[:1]
            if node.op_type in _AS_GIVEN and not state.rounded.issuperset(needed):
                continue
            state.in_int8.add(node.name)
            if node.name in self._folded:
                state.folded.add(node.name)
                state.folded_into[node.input[0]] = node.output[0]
                state.rounded.discard(node.input[0])
            touched = {*node.input, *node.output} & (self._rounded.keys() | between)
            state.rounded |= touched - state.folded_into.keys()
        for name in self._outputs & state.rounded:
            maker, readers = self._maker[name], (name in node.input for node in self._float.node)
            if maker.op_type in PRODUCTS_WITH_FLOAT_OUTPUT and not any(readers):
                state.rounded.discard(name)
        return state

    def _rewired(self, node: NodeProto, state: _Marked) -> NodeProto:
        own, int8 = NodeProto(), node.name in state.in_int8
        own.CopyFrom(self._nodes[node.name] if int8 else node)
        for place, name in enumerate(node.input):
            if name in self._float_constants:
                if not int8 or own.input[place] not in self._constants:
                    own.input[place] = self._float_name(name)
            else:
                maker = self._maker.get(name)
                apart = node.name in state.in_float and maker is not None and maker.name in state.in_float
                own.input[place] = self._exact(name, state) if apart else self._seen(name, state)
        own.output[:] = [self._exact(state.folded_into.get(name, name), state) for name in node.output]
        return own

    def _float_name(self, name: str) -> str:
        """Return how a constant of the network is called where the int8 file has rounded it under its name."""
        return name + _IN_FLOAT if name in self._constants else name

    def _exact(self, name: str, state: _Marked) -> str:
        return name + BEFORE if name in state.rounded & self._outputs else name

    def _seen(self, name: str, state: _Marked) -> str:
        return name + _AFTER if name in state.rounded - self._outputs else name

    def _rounding(self, name: str, state: _Marked, read: Collection[str]) -> Iterator[NodeProto]:
        """Yield the nodes that round a tensor, where it is and something reads it."""
        if name not in state.rounded or self._seen(name, state) not in read:
            return
        yield from self._rounded[name]

    def _store_integers(self, graph: onnx.GraphProto, nodes: Collection[str]) -> None:
        """Let ``nodes`` in float read weights that are stored in 8 bits."""
        unpacking: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            weight = self._integers_of(node.name) if node.name in nodes else None
            if weight is None:
                continue
            integers, scale = weight.input[:2]
            name, stored = integers + _UNPACKED, self._int8_constants
            if name not in unpacking:
                axis = next((each.i for each in weight.attribute if each.name == "axis"), 1)
                scales = numpy_helper.to_array(stored[scale])
                shape = [scales.size if place == axis else 1 for place in range(len(stored[integers].dims))]
                spread = numpy_helper.from_array(scales.reshape(shape if scales.size > 1 else ()), f"{name}.scale")
                cast = helper.make_node("Cast", [integers], [f"{name}.cast"], f"{name}.cast", to=onnx.TensorProto.FLOAT)
                graph.initializer.extend([stored[integers], spread])
                unpacking[name] = [cast, helper.make_node("Mul", [cast.output[0], spread.name], [name], name)]
            node.input[1] = name
            if node.name in self._biases:
                bias = numpy_helper.from_array(self._biases[node.name], f"{node.input[2]}{_UNPACKED}")
                graph.initializer.append(bias)
                node.input[2] = bias.name
        if unpacking:
            _rearrange(graph, [each for pair in unpacking.values() for each in pair])

    def _integers_of(self, name: str) -> NodeProto | None:
        """Return what undoes the rounding of a product's weight; None where it has no weight on a symmetric grid."""
        node = self._nodes.get(name)
        weight = self._constants.get(node.input[1]) if node is not None and node.op_type in _WEIGHTED else None
        if weight is None or len(self._int8_constants[weight.input[0]].dims) < 2:
            return None
        symmetric = len(weight.input) < 3 or not numpy_helper.to_array(self._int8_constants[weight.input[2]]).any()
        return weight if symmetric else None

    def _add_constants(self, graph: onnx.GraphProto) -> None:
        for name in dict.fromkeys(name for node in graph.node for name in node.input):
            if name in self._int8_constants:
                graph.initializer.append(self._int8_constants[name])
            elif (
                name not in self._constants
                and (stored := self._float_constants.get(name.removesuffix(_IN_FLOAT))) is not None
            ):
                graph.initializer.append(stored)
                graph.initializer[-1].name = name


def _rearrange(graph: onnx.GraphProto, first: list[NodeProto]) -> None:
    """Put nodes before all others, and drop constants that nothing reads or that are there twice."""
    nodes = [*first, *graph.node]
    read = {name for node in nodes for name in node.input}
    constants = {each.name: each for each in graph.initializer if each.name in read}
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants.values())


def unpacked_weights(graph: onnx.GraphProto) -> set[str]:
    """Return the weights that a file stores in 8 bits for nodes that compute in float, as these nodes read them."""
    return {name for node in graph.node for name in node.output if name.endswith(_UNPACKED)}


def activation_grid(low: float, high: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return zero point and scale of a range of activations as onnxruntime's quantizer has them; 0 and 1 of none."""
    ends = (np.array(end, np.float32) for end in (low, high))
    zero_point, scale = compute_scale_zp(*ends, np.array(0, np.uint8), np.array(255, np.uint8))
    return zero_point, scale


@dataclass
class _Marked:
    """Which nodes compute in float and in int8, which tensors are rounded, and which activations go into ranges.

    Attributes:
        folded_into: by what an activation is given, what it makes.
    """

    in_float: set[str]
    in_int8: set[str] = field(default_factory=set)
    rounded: set[str] = field(default_factory=set)
    folded: set[str] = field(default_factory=set)
    folded_into: dict[str, str] = field(default_factory=dict)


def compute_in_float(graph: onnx.GraphProto) -> None:
    """Change a QDQ network so that onnxruntime computes its float products in float, with the same outputs.

    onnxruntime rounds the weights of a float ``Conv``, ``ConvTranspose`` or ``Gemm`` itself, with one scale for the
    whole tensor, where its input comes from 8 bits and its output goes to 8 bits. It leaves those alone whose input has
    a scale for each channel, so that is what they get: the one scale, repeated.

    Source: onnxruntime, ``core/optimizer/qdq_transformer/weight_bias_quantization.cc``.
    """
    constants = {each.name: each for each in graph.initializer}
    dequantizing = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for position, node in reversed(list(enumerate(graph.node))):
        weight = constants.get(node.input[1]) if node.op_type in _ROUNDED else None
        before = dequantizing.get(node.input[0]) if node.input else None
        if weight is None or before is None or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        names = [f"{node.name}.input.{part}" for part in ("scale", "zero_point", "float")]
        values = [
            np.resize(numpy_helper.to_array(constants[name]), _channels(node, weight)) for name in before.input[1:]
        ]
        graph.initializer.extend(map(numpy_helper.from_array, values, names))
        inputs = [before.input[0], *names[: len(values)]]
        own = helper.make_node("DequantizeLinear", inputs, names[2:], name=f"{node.name}.dequantize", axis=_CHANNELS)
        node.input[0] = own.output[0]
        graph.node.insert(position, own)
    read = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for unread in [node for name, node in dequantizing.items() if name not in read]:
        graph.node.remove(unread)


def _channels(node: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return how many channels the input of a product has."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Conv":
        return int(weight.dims[1]) * int(attributes.get("group", 1))
    return int(weight.dims[1 if attributes.get("transB", 0) else 0])
