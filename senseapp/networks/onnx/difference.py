"""What differs between an ONNX file and an edited copy of it, found from their bytes."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import NodeProto, StringStringEntryProto, TensorProto, numpy_helper

from senseapp.core.texts import first_names, plural
from senseapp.networks.onnx.read import tensor_in
from senseapp.networks.onnx.wire import (
    DECLARED,
    GRAPH,
    INITIALIZERS,
    INPUTS,
    INPUTS_OF_GRAPH,
    METADATA,
    NODES,
    OUTPUTS,
    replaced,
    rewritten,
)

_SHOWN = 5  # names in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTensor:
    """A tensor of both files with other numbers.

    Attributes:
        name: of the initializer, or of what a Constant node computes.
        changed: how many of its ``size`` numbers differ; all where its shape does.
        shape, before: its shape in the edited file, and in the other.
        half: whether it is stored in half precision, which rounds what is written.
    """

    name: str
    changed: int
    size: int
    shape: tuple[int, ...]
    before: tuple[int, ...]
    half: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxDifference:
    """What differs between two files.

    Attributes:
        tensors: those with other numbers.
        added_tensors, removed_tensors: names of initializers.
        added_nodes, removed_nodes: by kind, how many.
        rewired_nodes: nodes that read or make values of other names.
        regrouped_nodes: convolutions with another number of groups.
        declared: names of values that are declared with other shapes, or no longer.
        metadata: keys of entries with other values.
        otherwise_identical: whether all other bytes are the same, in the same order.
    """

    tensors: tuple[ChangedTensor, ...] = ()
    added_tensors: tuple[str, ...] = ()
    removed_tensors: tuple[str, ...] = ()
    added_nodes: Mapping[str, int]
    removed_nodes: Mapping[str, int]
    rewired_nodes: tuple[str, ...] = ()
    regrouped_nodes: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    otherwise_identical: bool = True

    @property
    def sentences(self) -> tuple[str, ...]:
        """The differences, in sentences."""
        found = self.parts
        if not found and self.otherwise_identical:
            return ("The file is the uploaded one, byte for byte.",)
        rest = (
            "All else in the file is the uploaded one's, byte for byte."
            if self.otherwise_identical
            else "Other parts of the file differ as well."
        )
        return (*found, rest)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that differ, for people."""
        return (*self._on_tensors(), *self._on_nodes())

    def _on_tensors(self) -> list[str]:
        found = []
        if self.tensors:
            values, size = sum(each.changed for each in self.tensors), sum(each.size for each in self.tensors)
            found.append(
                f"The uploaded file with {plural(len(self.tensors), 'changed tensor')}: {values:,} of {size:,} numbers "
                f"({_named([each.name for each in self.tensors])})."
            )
        if any(each.half for each in self.tensors):
            found.append("Changed weights are stored in the half precision of the file, and rounded to it.")
        if self.added_tensors:
            found.append(f"{plural(len(self.added_tensors), 'new tensor')} ({_named(self.added_tensors)}).")
        if self.removed_tensors:
            found.append(f"{plural(len(self.removed_tensors), 'tensor')} no longer read and left out.")
        return found

    def _on_nodes(self) -> list[str]:
        found = []
        for counts, what in ((self.added_nodes, "inserted"), (self.removed_nodes, "left out")):
            if counts:
                kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
                found.append(f"{plural(sum(counts.values()), 'node')} {what} ({kinds}).")
        if self.rewired_nodes:
            found.append(
                f"{plural(len(self.rewired_nodes), 'node')} with inputs or outputs of other names "
                f"({_named(self.rewired_nodes)})."
            )
        if self.regrouped_nodes:
            found.append(
                f"{plural(len(self.regrouped_nodes), 'convolution')} with fewer groups, as many as channels were kept "
                f"({_named(self.regrouped_nodes)})."
            )
        if self.declared:
            found.append(f"{plural(len(self.declared), 'declared shape')} corrected or left out.")
        if self.metadata:
            found.append(f"{plural(len(self.metadata), 'entry', 'entries')} of metadata ({_named(self.metadata)}).")
        return found


def difference(before: bytes, after: bytes) -> OnnxDifference:
    """Return what differs between two ONNX files."""
    old, new = _ChangedParts.of(before), _ChangedParts.of(after)
    tensors = tuple(
        found for name in old.tensors.keys() & new.tensors.keys() if (found := _changed(name, old, new)) is not None
    )
    order = {name: place for place, name in enumerate(old.tensors)}
    pairs = _pairs(old.nodes, new.nodes)
    rewired = {key: other for key, other in pairs.items() if old.nodes[key] != new.nodes[other]}
    other = {key for key in old.nodes.keys() & new.nodes.keys() if key not in pairs and key not in pairs.values()}
    regrouped = {key for key in other if _ungrouped(old.nodes[key]) == _ungrouped(new.nodes[key])}
    added = new.nodes.keys() - pairs.values() - other
    removed = old.nodes.keys() - pairs.keys() - other
    declared = {
        name for name in old.declared.keys() | new.declared.keys() if old.declared.get(name) != new.declared.get(name)
    }
    changed = {each.name for each in tensors} | (old.tensors.keys() ^ new.tensors.keys())
    metadata = {key for key, _ in old.metadata.items() ^ new.metadata.items()}
    touched = _Touched(tensors=changed, nodes={*rewired, *removed, *regrouped}, declared=declared, metadata=metadata)
    touched_after = replace(touched, nodes={*rewired.values(), *added, *regrouped})
    return OnnxDifference(
        tensors=tuple(sorted(tensors, key=lambda each: order[each.name])),
        added_tensors=tuple(name for name in new.tensors if name not in old.tensors),
        removed_tensors=tuple(name for name in old.tensors if name not in new.tensors),
        added_nodes=new.kinds(added),
        removed_nodes=old.kinds(removed),
        rewired_nodes=tuple(key for key in old.nodes if key in rewired),
        regrouped_nodes=tuple(key for key in old.nodes if key in regrouped),
        declared=tuple(sorted(declared)),
        metadata=tuple(sorted(metadata)),
        otherwise_identical=touched.rest(before) == touched_after.rest(after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedParts:
    """The parts of a file by name: bytes of nodes and declarations, and tensors."""

    tensors: Mapping[str, TensorProto]
    nodes: Mapping[str, bytes]
    declared: Mapping[str, bytes]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, content: bytes) -> _ChangedParts:
        tensors: dict[str, TensorProto] = {}
        nodes: dict[str, bytes] = {}
        declared: dict[str, bytes] = {}
        model = onnx.load_from_string(content)
        graph = model.graph
        tensors.update({each.name: each for each in graph.initializer})
        for node in graph.node:
            constant = tensor_in(node)
            if constant is not None:
                tensors[node.output[0]] = constant
            else:
                nodes[_key(node)] = node.SerializeToString()
        declared.update({each.name: each.SerializeToString() for each in graph.value_info})
        declared.update({each.name: each.SerializeToString() for each in graph.input if each.name in tensors})
        metadata = {each.key: each.value for each in model.metadata_props}
        return cls(tensors=tensors, nodes=nodes, declared=declared, metadata=metadata)

    def kinds(self, keys: Collection[str]) -> Counter[str]:
        return Counter(NodeProto.FromString(self.nodes[key]).op_type for key in keys)


def _pairs(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, str]:
    """Return which nodes are the same but for names of values: by their own name or output, else in order."""
    kinds = {key: _unwired(node) for key, node in new.items()}
    pairs = {key: key for key, node in old.items() if kinds.get(key) == _unwired(node)}
    waiting: dict[bytes, deque[str]] = {}
    for key, kind in kinds.items():
        if key not in pairs:
            waiting.setdefault(kind, deque()).append(key)
    for key, node in old.items():
        if key not in pairs and (same := waiting.get(_unwired(node))):
            pairs[key] = same.popleft()
    return pairs


def _key(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "")


def _unwired(node: bytes) -> bytes:
    return replaced(node, {INPUTS, OUTPUTS}, b"")


def _ungrouped(node: bytes) -> bytes:
    """Return a node without names of values and its number of groups."""
    parsed = NodeProto.FromString(_unwired(node))
    kept = [each for each in parsed.attribute if each.name != "group"]
    del parsed.attribute[:]
    parsed.attribute.extend(kept)
    return bytes(parsed.SerializeToString())


def _changed(name: str, old: _ChangedParts, new: _ChangedParts) -> ChangedTensor | None:
    before, after = old.tensors[name], new.tensors[name]
    if before == after:
        return None
    shape, shape_before = tuple(after.dims), tuple(before.dims)
    size = math.prod(shape)
    changed = size
    if shape == shape_before:
        changed = int(np.sum(numpy_helper.to_array(before) != numpy_helper.to_array(after)))
    half = after.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return ChangedTensor(name=name, changed=changed, size=size, shape=shape, before=shape_before, half=half)


@dataclass(slots=True, kw_only=True)
class _Touched:
    """Names of the parts of a file that differ from another."""

    tensors: set[str]
    nodes: set[str]
    declared: set[str]
    metadata: set[str]

    def rest(self, content: bytes) -> bytes:
        """Return a file without what differs."""
        changes = {
            NODES: self._node,
            INITIALIZERS: self._initializer,
            DECLARED: self._declaration,
            INPUTS_OF_GRAPH: self._declaration,
        }
        return rewritten(content, {GRAPH: lambda graph: [rewritten(graph, changes)], METADATA: self._entry})

    def _entry(self, message: bytes) -> Sequence[bytes]:
        return [] if StringStringEntryProto.FromString(message).key in self.metadata else [message]

    def _node(self, message: bytes) -> Sequence[bytes]:
        node = NodeProto.FromString(message)
        if tensor_in(node) is not None:
            return [] if node.output[0] in self.tensors else [message]
        return [] if _key(node) in self.nodes else [message]

    def _initializer(self, message: bytes) -> Sequence[bytes]:
        return [] if TensorProto.FromString(message).name in self.tensors else [message]

    def _declaration(self, message: bytes) -> Sequence[bytes]:
        return [] if onnx.ValueInfoProto.FromString(message).name in self.declared else [message]


def _named(names: Sequence[str]) -> str:
    return first_names([f"“{name}”" for name in names], _SHOWN)
