"""Free a batch size that an export has fixed: in targets of Reshape, class tokens, sizes, constants per image.

The graph is inferred for another batch than the export's. A node that would not follow is rewritten from the shapes
that it has at the export's batch; ``check.py`` compares the result with onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import Folding, Values, advance, start
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph

Shape = Sequence[int]
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "PRelu", "Sum", "Mean"})


def free_batch(
    graph: TorchGraph, reference: Values, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[TorchGraph, Values]:
    """Return ``graph`` rewritten so that it takes inputs of ``shapes``, with its values for them.

    Args:
        graph: as it was exported.
        reference: values at the export's batch.
        shapes: of the inputs, for another batch.

    Raises UnsupportedModel where a node does not follow, or an output is not one per image.
    """
    first = next(iter(shapes))
    batch = reference[first].shape[0]
    freeing = _Freeing(batch=batch, reference=reference, values=start(graph, shapes), constants=dict(graph.constants))
    nodes: list[Node] = []
    folding = Folding()
    for node in graph.nodes:
        followed = freeing.followed(node)
        advance(followed, freeing.values, folding)
        nodes.extend(followed)
    ratio = shapes[first][0] / batch
    for name in graph.outputs:
        old, new = reference[name].shape, freeing.values[name].shape
        if not old or list(new) != [round(old[0] * ratio), *old[1:]]:
            raise UnsupportedModel(
                f"The output “{name}” is {list(new)} for {shapes[first][0]} images, not one per image."
            )
    return replace(graph, nodes=tuple(nodes), constants=freeing.constants), freeing.values


@dataclass(slots=True, kw_only=True)
class _Freeing:
    batch: int
    reference: Values
    values: Values
    constants: dict[str, Constant]
    added: int = 0
    expanded: dict[tuple[str, int, str], str] = field(default_factory=dict)

    def followed(self, node: Node) -> list[Node]:
        """Return ``node``, or what takes its place."""
        varying = [name for name in node.inputs if name and self._changed(name) is not None]
        if varying and (node.op == "Concat" or node.op in _BROADCASTING):
            return self._together(node, varying[0])
        changes = {"Gather": self._gather, "Reshape": self._reshape, "Expand": self._expand, "Resize": self._resize}
        change = changes.get(node.op) if varying else None
        return [node if change is None else change(node)]

    def _changed(self, name: str) -> int | None:
        """Return the axis whose length differs between the batches; None where there is not exactly one."""
        old, new = self.reference[name].shape, self.values[name].shape
        axes = [axis for axis, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
        return axes[0] if len(old) == len(new) and len(axes) == 1 else None

    def _reshape(self, node: Node) -> Node:
        old, new = self.reference[node.inputs[0]].shape, self.values[node.inputs[0]].shape
        axis, stored = self._changed(node.inputs[0]), self.values[node.inputs[1]]
        target = self.reference[node.outputs[0]].shape
        place = None if axis is None or stored.is_meta else _place_of_batch(old, axis, target, self.batch)
        if axis is None or place is None:
            return node
        wanted = list(target)
        wanted[place] = target[place] * new[axis] // old[axis]
        if _target(stored.tolist(), new, allow_zero=bool(node.attributes.get("allowzero", 0))) == wanted:
            return node
        return self._with(node, 1, [-1 if each == place else length for each, length in enumerate(target)])

    def _gather(self, node: Node) -> Node:
        """Return a Reshape for a Gather of every element of a flat tensor in order, as ``as_strided`` is exported."""
        indices, old = self.constants.get(node.inputs[1]), self.reference[node.inputs[0]]
        if indices is None or old.ndim != 1 or indices.value.numel() != old.numel():
            return node
        if not torch.equal(indices.value.flatten().long(), torch.arange(old.numel())):
            return node
        shape = list(self.reference[node.outputs[0]].shape)
        return self._reshape(replace(self._with(node, 1, shape), op="Reshape", attributes={}))

    def _expand(self, node: Node) -> Node:
        axis, lengths = self._changed(node.inputs[0]), self.values[node.inputs[1]]
        if axis is None or lengths.is_meta:
            return node
        stored = lengths.tolist()
        place = len(stored) - self.reference[node.inputs[0]].ndim + axis
        if place < 0 or stored[place] == 1:
            return node
        return self._with(node, 1, [1 if each == place else length for each, length in enumerate(stored)])

    def _resize(self, node: Node) -> Node:
        axis, sizes = self._changed(node.inputs[0]), self.constants.get("".join(node.inputs[3:4]))
        if axis is None or sizes is None or node.attributes.get("axes") is not None or sizes.value.numel() <= axis:
            return node
        axes = [each for each in range(sizes.value.numel()) if each != axis]
        changed = self._with(node, 3, sizes.value[axes].tolist())
        return replace(changed, attributes={**node.attributes, "axes": axes}, version=max(18, node.version))

    def _together(self, node: Node, like: str) -> list[Node]:
        """Repeat inputs that are the same for every image beside ``like``, where their lengths must agree."""
        axis = self._changed(like)
        assert axis is not None
        from_end = axis - self.values[like].ndim
        before, inputs = [], []
        for name in node.inputs:
            value = self.values[name] if name else None
            if value is not None and self._is_per_batch(name, from_end, like, concat=node.op == "Concat"):
                _check_same_rows(node, value, from_end)
                key = (name, value.ndim + from_end, like)
                if key not in self.expanded:
                    before.append(self._repeated(name, value.ndim + from_end, like, axis))
                    self.expanded[key] = before[-1].outputs[0]
                name = self.expanded[key]
            inputs.append(name)
        return [*before, replace(node, inputs=tuple(inputs))]

    def _is_per_batch(self, name: str, from_end: int, like: str, *, concat: bool) -> bool:
        """Return whether a value has the length of a batch where ``like`` has it, and does not follow that."""
        value = self.values[name]
        if self._changed(name) is not None or value.ndim < -from_end:
            return False
        length = value.shape[from_end]
        return length == self.reference[like].shape[from_end] and (concat or length > 1)

    def _repeated(self, name: str, axis: int, like: str, like_axis: int) -> Node:
        new = self._name("repeated")
        attributes = {"axis": axis, "like_axis": like_axis}
        return Node(
            name=new, op="ExpandLike", version=18, inputs=(name, like), outputs=(new,), attributes=attributes, scope=""
        )

    def _with(self, node: Node, position: int, numbers: list[int]) -> Node:
        name = self._name("shape")
        self.constants[name] = Constant(value=torch.tensor(numbers, dtype=torch.int64))
        self.values[name] = self.constants[name].value
        inputs = list(node.inputs)
        inputs[position] = name
        return replace(node, inputs=tuple(inputs))

    def _name(self, what: str) -> str:
        self.added += 1
        return f"free batch {what} {self.added}"  # has a space: no exporter names a value so


def _check_same_rows(node: Node, value: Tensor, axis: int) -> None:
    if value.shape[axis] == 1:
        return
    if value.is_meta or not torch.equal(value, value.narrow(axis, 0, 1).expand(value.shape)):
        raise UnsupportedModel(f"Node {node.title} has other numbers for each image of a batch.")


def _place_of_batch(old: Shape, axis: int, target: Shape, batch: int) -> int | None:
    """Return the axis of ``target`` that holds the images of ``axis`` of ``old``; None if there is none.

    Both are read in memory order: what lies before the axis must be the same number of elements.
    """
    before = math.prod(old[:axis])
    for place in range(len(target)):
        if math.prod(target[:place]) == before and target[place] % batch == 0:
            return place
    return None


def _target(stored: list[int], shape: Shape, *, allow_zero: bool) -> list[int] | None:
    """Return the shape that a Reshape to ``stored`` gives; None where it does not fit."""
    if any(not length and axis >= len(shape) for axis, length in enumerate(stored)):
        return None
    lengths = [shape[axis] if not length and not allow_zero else length for axis, length in enumerate(stored)]
    total, known = math.prod(shape), math.prod(length for length in lengths if length != -1)
    if -1 in lengths and known and total % known == 0:
        lengths[lengths.index(-1)] = total // known
    return lengths if math.prod(lengths) == total else None
