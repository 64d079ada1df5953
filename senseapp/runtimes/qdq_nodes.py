"""A QDQ file of any quantizer, with some of its nodes back in float: what rounding them costs.

A node is quantized where it reads values through DequantizeLinear, or makes one that is rounded. Back in float it reads
its inputs before their rounding, with a Relu or Clip that the quantizer left out, and its weights from the float file.
Its output is not rounded on the way to an output of the network; other readers of its inputs keep their rounding.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING
from senseapp.runtimes.onnxruntime.rounding.weights import along

_MOVING = frozenset(
    {
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather", "Identity"),
        *("GatherElements", "Expand", "Tile", "Pad", "MaxPool"),
    }
)
"""Operators that only move numbers: what they read and make is rounded alike."""
_LEFT_OUT = frozenset({"Relu", "Clip"})
_MOST_STEPS = 1.0
"""Steps that a weight may be from its rounded form, in the median; a weight that was folded is further away."""
_Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedNode:
    """A node of somebody's quantized file that computes; ``weights_known``: its float weights were found."""

    name: str
    op: str
    weights_known: bool = True


class QdqFile:
    """A QDQ file of any quantizer, whose nodes can be put back in float one by one as the ``reference`` has them.

    Raises InvalidSpec if no node of it is quantized.
    """

    def __init__(self, content: bytes, reference: bytes) -> None:
        self._graph, self._float = OnnxGraph(content), OnnxGraph(reference)
        self._nodes = {_label(node): node for node in self._graph.nodes if self._is_quantized(node)}
        if not self._nodes:
            raise InvalidSpec(
                "No node of the quantized file reads or makes values that QuantizeLinear rounds. Quantize in the QDQ "
                "format."
            )

    @cached_property
    def nodes(self) -> tuple[QuantizedNode, ...]:
        """The quantized nodes, in order."""
        return tuple(
            QuantizedNode(
                name=name, op=node.op_type, weights_known=all(value is not None for _, value in self._weights(node))
            )
            for name, node in self._nodes.items()
        )

    def restored(self, names: Collection[str]) -> bytes:
        """Return the file with the nodes ``names`` in float."""
        graph = self._graph.copy()
        copies = {_label(node): node for node in graph.nodes}
        for name in names:
            node, own = self._nodes[name], copies[name]
            for place, source in self._unrounded(node):
                graph.read_instead(own, place, self._activated(graph, source))
            for place, value in self._weights(node):
                if value is not None:
                    stored = f"{node.input[place]} in float, of {name}"
                    graph.store(stored, value)
                    graph.read_instead(own, place, stored)
            for output in node.output:
                _unround_on(graph, output)
        graph.prune()
        return graph.content()

    def _is_quantized(self, node: NodeProto) -> bool:
        reads = any(self._dequantizing(name) is not None for name in node.input)
        return node.op_type not in ROUNDING and (reads or not self._rounded_values.isdisjoint(node.output))

    @cached_property
    def _rounded_values(self) -> set[str]:
        return {node.input[0] for node in self._graph.nodes if node.op_type == "QuantizeLinear"}

    def _dequantizing(self, name: str) -> NodeProto | None:
        found = self._graph.maker(name)
        return found if found is not None and found.op_type == "DequantizeLinear" else None

    def _unrounded(self, node: NodeProto) -> Iterator[tuple[int, str]]:
        """Yield each input that is rounded, and the value before it was."""
        for place, name in enumerate(node.input):
            undone = self._dequantizing(name)
            made = None if undone is None else self._graph.maker(undone.input[0])
            if made is not None and made.op_type == "QuantizeLinear":
                yield place, made.input[0]

    def _activated(self, graph: OnnxGraph, source: str) -> str:
        """Return the value ``source`` behind the activation that the float file has there and this one left out."""
        theirs, mine = self._float.maker(source), graph.maker(source)
        if theirs is None or theirs.op_type not in _LEFT_OUT or (mine is not None and mine.op_type == theirs.op_type):
            return source
        own = f"{source} behind its {theirs.op_type}"
        if graph.maker(own) is not None:
            return own
        added = NodeProto()
        added.CopyFrom(theirs)
        added.name = added.output[0] = own
        added.input[0] = source
        for place, name in enumerate(theirs.input[1:], 1):
            bound = self._float.array(name) if name else None
            added.input[place] = "" if bound is None else f"{own}, bound {place}"
            if bound is not None:
                graph.store(added.input[place], bound)
        graph.insert(added, after=mine)
        return own

    def _weights(self, node: NodeProto) -> Iterator[tuple[int, _Array | None]]:
        """Yield each input that is stored as integers, and its float numbers where they are known."""
        twin = self._twin(node)
        for place, name in enumerate(node.input):
            undone = self._dequantizing(name)
            codes = None if undone is None else self._graph.array(undone.input[0])
            if undone is None or codes is None:
                continue
            value = self._float.array(twin.input[place]) if twin is not None and place < len(twin.input) else None
            fits = value is not None and value.dtype.kind == "f" and value.shape == codes.shape
            number = value.astype(np.float32) if value is not None and fits else None
            yield place, number if number is not None and self._is_near(undone, codes, number) else None

    def _is_near(self, undone: NodeProto, codes: NDArray[np.generic], value: _Array) -> bool:
        scale = self._graph.array(undone.input[1])
        zero = self._graph.array(undone.input[2]) if len(undone.input) > 2 and undone.input[2] else np.zeros(())
        if scale is None or zero is None:
            return False
        axis = next((each.i for each in undone.attribute if each.name == "axis"), 1)
        steps, offset = (along(np.asarray(each, np.float32), axis, codes.ndim) for each in (scale, zero))
        try:
            apart = np.abs(value - (codes.astype(np.float32) - offset) * steps) / np.maximum(np.abs(steps), 1e-30)
        except ValueError:  # scales per block
            return False
        return bool(np.median(apart) <= _MOST_STEPS) if apart.size else True

    def _twin(self, node: NodeProto) -> NodeProto | None:
        """Return the node of the float file for a quantized one: by the value that it computes, or its name."""
        alike = [each for each in self._float.nodes if each.op_type == node.op_type]
        found = [each for each in alike if each.output[0] == node.output[0]]
        return next(iter(found or (each for each in alike if each.name and each.name == node.name)), None)


def _label(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "")


def _unround_on(graph: OnnxGraph, value: str) -> None:
    """Remove the rounding of a value that is an output of the network, or only moved on the way to one."""
    rounding = [node for node in graph.readers(value) if node.op_type == "QuantizeLinear" and node.input[0] == value]
    undoing = [reader for node in rounding for reader in graph.readers(node.output[0])]
    undone = {node.output[0]: node for node in undoing if node.op_type == "DequantizeLinear"}
    for name in set(graph.outputs) & undone.keys():
        undone[name].CopyFrom(helper.make_node("Identity", [value], [name], f"{name} in float"))
    graph.rewired()
    for node in [each for each in graph.nodes if each.op_type in _MOVING and not undone.keys().isdisjoint(each.input)]:
        node.input[:] = [value if name in undone else name for name in node.input]
        graph.rewired()
        for made in node.output:
            _unround_on(graph, made)
