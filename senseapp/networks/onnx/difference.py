"""What differs between an ONNX file and an edited copy of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from senseapp.core.texts import first_names, plural
from senseapp.networks.onnx.graph import OnnxGraph, tensor_in

HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""Types of half precision."""


class ChangedTensor(NamedTuple):
    """A tensor of both files of which ``changed`` of ``size`` numbers differ; ``half`` is half precision."""

    name: str
    changed: int
    size: int
    half: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxDifference:
    """What differs between two files: tensors, nodes by kind, keys of metadata.

    ``changed_nodes`` read or compute values of other names, or have other groups; ``declared`` are names of values that
    are declared with other shapes, or no longer.
    """

    tensors: tuple[ChangedTensor, ...]
    added_tensors: tuple[str, ...]
    removed_tensors: tuple[str, ...]
    added_nodes: Mapping[str, int]
    removed_nodes: Mapping[str, int]
    changed_nodes: tuple[str, ...]
    declared: tuple[str, ...]
    metadata: tuple[str, ...]
    otherwise_identical: bool

    @property
    def sentences(self) -> tuple[str, ...]:
        """The differences, in sentences."""
        values, size = sum(each.changed for each in self.tensors), sum(each.size for each in self.tensors)
        changed = f"{plural(len(self.tensors), 'changed tensor')}: {values:,} of {size:,} numbers"
        nodes = f"{plural(len(self.changed_nodes), 'node')} with inputs or outputs of other names, or other groups"
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
            (self.changed_nodes, f"{nodes} ({_named(self.changed_nodes)})."),
            (self.declared, f"{plural(len(self.declared), 'declared shape')} corrected or left out."),
            (self.metadata, f"{entries} of metadata ({_named(self.metadata)})."),
        )
        parts = tuple(sentence for there, sentence in found if there)
        if not self.otherwise_identical:
            return (*parts, "Other parts of the file differ as well.")
        return (*parts, "All else in the file is as it was uploaded.") if parts else ("The file is the uploaded one.",)


def _named(names: Sequence[str]) -> str:
    return first_names([f"“{name}”" for name in names], 5)


def _counted(counts: Mapping[str, int], what: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{plural(sum(counts.values()), 'node')} {what} ({kinds})."


def difference(before: bytes, after: bytes) -> OnnxDifference:
    """Return what differs between two ONNX files; the order of nodes does not count."""
    old, new = OnnxGraph(before), OnnxGraph(after)
    tensors, kept = old.tensors(), new.tensors()
    nodes, edited = _nodes(old), _nodes(new)
    kinds, edited_kinds = Counter(map(_kind, nodes.values())), Counter(map(_kind, edited.values()))
    (declared, metadata, rest), (redeclared, new_metadata, new_rest) = _rest(old), _rest(new)
    return OnnxDifference(
        tensors=tuple(
            changed
            for name, tensor in tensors.items()
            if name in kept and (changed := _changed(name, tensor, kept[name])) is not None
        ),
        added_tensors=tuple(name for name in kept if name not in tensors),
        removed_tensors=tuple(name for name in tensors if name not in kept),
        added_nodes=Counter(op for op, _ in (edited_kinds - kinds).elements()),
        removed_nodes=Counter(op for op, _ in (kinds - edited_kinds).elements()),
        changed_nodes=tuple(key for key, node in nodes.items() if key in edited and node != edited[key]),
        declared=tuple(sorted({name for name, _ in declared ^ redeclared})),
        metadata=tuple(sorted({key for key, _ in metadata ^ new_metadata})),
        otherwise_identical=rest == new_rest,
    )


def _nodes(graph: OnnxGraph) -> dict[str, NodeProto]:
    """Return the nodes that hold no tensor, by their names or first outputs."""
    nodes = (node for node in graph.nodes if tensor_in(node) is None)
    return {node.name or next(iter(node.output), ""): node for node in nodes}


def _kind(node: NodeProto) -> tuple[str, bytes]:
    """Return operator and attributes of a node, but for its groups, which follow from its weight."""
    bare = NodeProto(domain=node.domain)
    bare.attribute.extend(each for each in node.attribute if each.name != "group")
    return node.op_type, bytes(bare.SerializeToString())


def _rest(graph: OnnxGraph) -> tuple[set[tuple[str, bytes]], set[tuple[str, str]], ModelProto]:
    """Return declarations of values between nodes, entries of metadata, and the model without these and tensors."""
    model, listed = ModelProto(), list[ValueInfoProto]()
    model.CopyFrom(graph.model)
    for each in list(model.graph.input):
        if each.name in graph.initializers:
            model.graph.input.remove(each)
            listed.append(each)
    declared = {(each.name, each.SerializeToString()) for each in (*model.graph.value_info, *listed)}
    metadata = {(each.key, each.value) for each in model.metadata_props}
    del model.graph.value_info[:], model.metadata_props[:]
    return declared, metadata, model


def _changed(name: str, before: TensorProto, after: TensorProto) -> ChangedTensor | None:
    if before == after:
        return None
    values, was = numpy_helper.to_array(after), numpy_helper.to_array(before)
    changed = values.size if values.shape != was.shape else int(np.sum(was != values))
    if not changed and before.data_type == after.data_type:
        return None  # the same numbers, stored in another way
    return ChangedTensor(name=name, changed=changed, size=values.size, half=after.data_type in HALF)
