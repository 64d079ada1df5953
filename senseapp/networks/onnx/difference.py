"""What differs between an ONNX file and an edited copy of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from senseapp.core.texts import first_names, plural
from senseapp.networks.onnx.graph import OnnxGraph, tensor_in

HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""Types of half precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTensor:
    """A tensor of both files with other numbers.

    Attributes:
        name: of the initializer, or of what a Constant node computes.
        changed: how many of its ``size`` numbers differ; all where its shape does.
        half: whether it is stored in half precision, which rounds what is written.
    """

    name: str
    changed: int
    size: int
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
        otherwise_identical: whether all else is the same, in the same order.
    """

    tensors: tuple[ChangedTensor, ...]
    added_tensors: tuple[str, ...]
    removed_tensors: tuple[str, ...]
    added_nodes: Mapping[str, int]
    removed_nodes: Mapping[str, int]
    rewired_nodes: tuple[str, ...]
    regrouped_nodes: tuple[str, ...]
    declared: tuple[str, ...]
    metadata: tuple[str, ...]
    otherwise_identical: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """The differences, in sentences."""
        if not self.otherwise_identical:
            return (*self.parts, "Other parts of the file differ as well.")
        return (*self.parts, "All else in the file is as it was uploaded.") if self.parts else (_SAME,)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that differ, for people."""
        values, size = sum(each.changed for each in self.tensors), sum(each.size for each in self.tensors)
        changed = f"{plural(len(self.tensors), 'changed tensor')}: {values:,} of {size:,} numbers"
        rewired = f"{plural(len(self.rewired_nodes), 'node')} with inputs or outputs of other names"
        regrouped = (
            f"{plural(len(self.regrouped_nodes), 'convolution')} with fewer groups, as many as channels were kept"
        )
        entries = plural(len(self.metadata), "entry", "entries")
        found: tuple[tuple[object, str], ...] = (
            (self.tensors, f"The uploaded file with {changed} ({_named([each.name for each in self.tensors])})."),
            (
                any(each.half for each in self.tensors),
                "Changed weights are stored in the half precision of the file, and rounded to it.",
            ),
            (self.added_tensors, f"{plural(len(self.added_tensors), 'new tensor')} ({_named(self.added_tensors)})."),
            (self.removed_tensors, f"{plural(len(self.removed_tensors), 'tensor')} no longer read and left out."),
            (self.added_nodes, _counted(self.added_nodes, "inserted")),
            (self.removed_nodes, _counted(self.removed_nodes, "left out")),
            (self.rewired_nodes, f"{rewired} ({_named(self.rewired_nodes)})."),
            (self.regrouped_nodes, f"{regrouped} ({_named(self.regrouped_nodes)})."),
            (self.declared, f"{plural(len(self.declared), 'declared shape')} corrected or left out."),
            (self.metadata, f"{entries} of metadata ({_named(self.metadata)})."),
        )
        return tuple(sentence for there, sentence in found if there)


_SAME = "The file is the uploaded one."


def _named(names: Sequence[str]) -> str:
    return first_names([f"“{name}”" for name in names], 5)


def _counted(counts: Mapping[str, int], what: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{plural(sum(counts.values()), 'node')} {what} ({kinds})."


def difference(before: bytes, after: bytes) -> OnnxDifference:
    """Return what differs between two ONNX files."""
    old, new = _Parts.of(before), _Parts.of(after)
    tensors = [found for name in old.tensors if (found := _changed(name, old, new)) is not None]
    pairs = _pairs(old.nodes, new.nodes)
    rewired = [key for key, other in pairs.items() if old.nodes[key] != new.nodes[other]]
    other = {key for key in old.nodes.keys() & new.nodes.keys() if key not in pairs and key not in pairs.values()}
    regrouped = [key for key in old.nodes if key in other and _ungrouped(old.nodes[key]) == _ungrouped(new.nodes[key])]
    added = new.nodes.keys() - pairs.values() - other
    removed = old.nodes.keys() - pairs.keys() - other
    declared = {name for name, _ in old.declared.items() ^ new.declared.items()}
    metadata = {key for key, _ in old.metadata.items() ^ new.metadata.items()}
    named = {each.name for each in tensors} | (old.tensors.keys() ^ new.tensors.keys()) | declared | metadata
    return OnnxDifference(
        tensors=tuple(tensors),
        added_tensors=tuple(name for name in new.tensors if name not in old.tensors),
        removed_tensors=tuple(name for name in old.tensors if name not in new.tensors),
        added_nodes=Counter(new.nodes[key].op_type for key in added),
        removed_nodes=Counter(old.nodes[key].op_type for key in removed),
        rewired_nodes=tuple(rewired),
        regrouped_nodes=tuple(regrouped),
        declared=tuple(sorted(declared)),
        metadata=tuple(sorted(metadata)),
        otherwise_identical=old.without(named, {*rewired, *removed, *regrouped})
        == new.without(named, {*(pairs[key] for key in rewired), *added, *regrouped}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of a file by name."""

    graph: OnnxGraph
    tensors: Mapping[str, TensorProto]
    nodes: Mapping[str, NodeProto]
    declared: Mapping[str, bytes]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, content: bytes) -> _Parts:
        graph = OnnxGraph(content)
        tensors, model = graph.tensors(), graph.model
        declared = [*model.graph.value_info, *(each for each in model.graph.input if each.name in tensors)]
        return cls(
            graph=graph,
            tensors=tensors,
            nodes={_key(node): node for node in graph.nodes if tensor_in(node) is None},
            declared={each.name: each.SerializeToString() for each in declared},
            metadata={each.key: each.value for each in model.metadata_props},
        )

    def without(self, named: Collection[str], nodes: Collection[str]) -> ModelProto:
        """Return the file without some nodes, and without the tensors, declarations and entries of these names."""
        rest = self.graph.copy()
        rest.nodes = [
            node
            for node in rest.nodes
            if (_key(node) not in nodes if tensor_in(node) is None else node.output[0] not in named)
        ]
        rest.initializers = {name: each for name, each in rest.initializers.items() if name not in named}
        model = rest.proto()
        for listed in (model.graph.value_info, model.graph.input, model.metadata_props):
            kept = [each for each in listed if getattr(each, "name", getattr(each, "key", "")) not in named]
            del listed[:]
            listed.extend(kept)
        return model


def _pairs(old: Mapping[str, NodeProto], new: Mapping[str, NodeProto]) -> dict[str, str]:
    """Return which nodes are the same but for names of values: by their own name or output, else in order."""
    kinds, kinds_before = ({key: _unwired(node) for key, node in nodes.items()} for nodes in (new, old))
    pairs = {key: key for key, kind in kinds_before.items() if kinds.get(key) == kind}
    waiting: dict[bytes, deque[str]] = {}
    for key, kind in kinds.items():
        if key not in pairs:
            waiting.setdefault(kind, deque()).append(key)
    for key, kind in kinds_before.items():
        if key not in pairs and (same := waiting.get(kind)):
            pairs[key] = same.popleft()
    return {key: pairs[key] for key in old if key in pairs}


def _key(node: NodeProto) -> str:
    return node.name or next(iter(node.output), "")


def _unwired(node: NodeProto, without: str = "") -> bytes:
    """Return a node without names of values, and without one attribute."""
    bare = NodeProto()
    bare.CopyFrom(node)
    del bare.input[:], bare.output[:], bare.attribute[:]
    bare.attribute.extend(each for each in node.attribute if each.name != without)
    return bytes(bare.SerializeToString())


def _ungrouped(node: NodeProto) -> bytes:
    return _unwired(node, "group")


def _changed(name: str, old: _Parts, new: _Parts) -> ChangedTensor | None:
    before, after = old.tensors[name], new.tensors.get(name)
    if after is None or before == after:
        return None
    values, was = numpy_helper.to_array(after), numpy_helper.to_array(before)
    changed = values.size if values.shape != was.shape else int(np.sum(was != values))
    if not changed and before.data_type == after.data_type:
        return None  # the same numbers, stored in another way
    return ChangedTensor(name=name, changed=changed, size=values.size, half=after.data_type in HALF)
