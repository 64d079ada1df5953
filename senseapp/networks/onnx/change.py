"""Edits of the graph in an ONNX file: which tensors, nodes and declarations change; all other bytes are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.wire import (
    ATTRIBUTE_NUMBER,
    ATTRIBUTE_TENSOR,
    ATTRIBUTES,
    DECLARED,
    GRAPH,
    INITIALIZERS,
    INPUTS,
    INPUTS_OF_GRAPH,
    NODES,
    NUMBERS,
    SHAPE,
    Change,
    replaced,
    rewritten,
)

Array = NDArray[np.generic]


@dataclass(slots=True, kw_only=True)
class GraphEdit:
    """What changes in a graph; nodes are named by the first value that they compute.

    Attributes:
        values: by name of an initializer, or output of a Constant node: numbers of the type that is stored.
        rewired: by node, names that some of its inputs get.
        added: new initializers.
        counts: by node, whole numbers that some of its attributes get: groups of a convolution, heads of an attention.
        undeclared: names of values whose declared shapes hold no longer.
    """

    values: dict[str, Array] = field(default_factory=dict)
    rewired: dict[str, dict[int, str]] = field(default_factory=dict)
    added: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    undeclared: set[str] = field(default_factory=set)

    def of(self, content: bytes) -> bytes:
        """Return the edited file; raises InvalidSpec where a part is not in the graph itself."""
        done: set[str] = set()
        changes: dict[int, Change] = {
            NODES: lambda message: [self._node(message, done)],
            INITIALIZERS: lambda message: [self._initializer(message, done)],
            INPUTS_OF_GRAPH: lambda message: [self._input(message)],
            DECLARED: self._declaration,
        }
        tensors = [numpy_helper.from_array(each, name) for name, each in self.added.items()]
        new = [(INITIALIZERS, each.SerializeToString()) for each in tensors]
        found = rewritten(content, {GRAPH: lambda graph: [rewritten(graph, changes, new)]})
        missing = (self.values.keys() | self.rewired.keys() | self.counts.keys()) - done
        if missing:
            raise InvalidSpec(
                f"“{min(missing)}” is inside a function or branch (If) of the graph, where it cannot be changed."
            )
        return found

    def _initializer(self, message: bytes, done: set[str]) -> bytes:
        name = TensorProto.FromString(message).name
        if name not in self.values:
            return message
        done.add(name)
        return with_numbers(message, self.values[name])

    def _node(self, message: bytes, done: set[str]) -> bytes:
        node = NodeProto.FromString(message)
        output = next(iter(node.output), "")
        if node.op_type == "Constant" and output in self.values:
            done.add(output)
            return with_constant(message, self.values[output])
        if output in self.rewired:
            done.add(output)
            message = rewritten(message, {INPUTS: renaming(self.rewired[output])})
        for name, count in self.counts.get(output, {}).items():
            done.add(output)
            message = rewritten(message, {ATTRIBUTES: _with_number(name, count)})
        return message

    def _input(self, message: bytes) -> bytes:
        """Return an input; older files declare initializers as such, with their shapes."""
        value = onnx.ValueInfoProto.FromString(message)
        shape = value.type.tensor_type.shape
        new = self.values.get(value.name)
        if new is None or [dim.dim_value for dim in shape.dim] == list(new.shape):
            return message
        for dim, length in zip(shape.dim, new.shape, strict=True):
            dim.dim_value = length
        return bytes(value.SerializeToString())

    def _declaration(self, message: bytes) -> Sequence[bytes]:
        return [] if onnx.ValueInfoProto.FromString(message).name in self.undeclared else [message]


def _with_number(name: str, value: int) -> Change:
    """Return a change of the whole number ``name`` among the attributes of a node."""
    fresh = AttributeProto(i=value).SerializeToString()

    def attribute(message: bytes) -> Sequence[bytes]:
        own = AttributeProto.FromString(message).name == name
        return [replaced(message, {ATTRIBUTE_NUMBER}, fresh)] if own else [message]

    return attribute


def with_constant(message: bytes, values: Array) -> bytes:
    """Return the bytes of a Constant node with other numbers."""

    def attribute(message: bytes) -> Sequence[bytes]:
        if AttributeProto.FromString(message).type != AttributeProto.TENSOR:
            return [message]
        return [rewritten(message, {ATTRIBUTE_TENSOR: lambda tensor: [with_numbers(tensor, values)]})]

    return rewritten(message, {ATTRIBUTES: attribute})


def renaming(names: Mapping[int, str]) -> Change:
    """Return a change of the repeated names of a node, by their positions."""
    position = -1

    def rename(message: bytes) -> Sequence[bytes]:
        nonlocal position
        position += 1
        return [names[position].encode()] if position in names else [message]

    return rename


def with_numbers(message: bytes, values: Array) -> bytes:
    """Return the bytes of a tensor with other numbers of its type, stored in the way of the old ones."""
    before, fresh = TensorProto.FromString(message), TensorProto()
    if before.HasField("raw_data"):
        fresh.raw_data = numpy_helper.from_array(values).raw_data
    elif before.data_type == TensorProto.FLOAT:
        fresh.float_data.extend(values.ravel().tolist())
    elif before.data_type == TensorProto.DOUBLE:
        fresh.double_data.extend(values.ravel().tolist())
    elif before.data_type == TensorProto.INT64:
        fresh.int64_data.extend(values.ravel().tolist())
    else:  # half precision is stored as the integers of its bits
        bits = values.view(np.uint16) if values.dtype.itemsize == 2 else values
        fresh.int32_data.extend(bits.ravel().tolist())
    message = replaced(message, NUMBERS, fresh.SerializeToString())
    if list(before.dims) != list(values.shape):
        message = replaced(message, {SHAPE}, TensorProto(dims=values.shape).SerializeToString())
    return message
