"""Values that are known before a graph runs: constant for any batch, or proportional to it.

``facts`` are the values of a graph for one or more numbers of images, each with that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from senseapp.networks.onnx.infer import Values
from senseapp.networks.onnx.modules import Counted, PerImage
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph

Facts = Sequence[tuple[int, Values]]


def without_known(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Turn values that are known and the same at every batch into constants; drop what only led to them."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        found = {name: _same([values[name] for _, values in facts if name in values]) for name in node.outputs if name}
        if all(each is not None for each in found.values()):
            constants.update({name: Constant(value=each) for name, each in found.items() if each is not None})
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _same(values: Sequence[Tensor]) -> Tensor | None:
    first = values[0] if values else None
    if first is None or any(each.is_meta for each in values):
        return None
    return first if all(torch.equal(first, each) for each in values[1:]) else None


def with_plain_targets(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Set a constant target of Reshape that holds for any batch, and drop the nodes that only computed it.

    Where the first lengths stay, they are copied (0); channels get −1, so that there may be fewer of them. A reshape of
    a reshape is one.
    """
    constants, makers = dict(graph.constants), graph.producers()
    nodes = []
    for node in graph.nodes:
        if node.op == "Reshape":
            sources = dict.fromkeys((_unshaped(node.inputs[0], makers), node.inputs[0]))
            found = ((source, _following(source, node.outputs[0], facts)) for source in sources)
            source, target = next((each for each in found if each[1] is not None), (node.inputs[0], None))
            node = replace(node, inputs=(source, *node.inputs[1:]))
            if target is None and node.inputs[1] not in constants:
                target = _target(node.outputs[0], facts)
            if target is not None:
                name = f"{node.name} target"
                constants[name] = Constant(value=torch.tensor(target, dtype=torch.int64))
                node = replace(node, inputs=(node.inputs[0], name), attributes={})  # 0 copies a length
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants).needed_for(graph.outputs)


def with_rolls(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Merge two parts of an axis that are joined in the other order into one roll, as before the export.

    What prunes channels takes any join for one of channels.
    """
    makers, nodes = graph.producers(), []
    for node in graph.nodes:
        if node.op == "Concat" and len(node.inputs) == 2:
            axis = int(node.attributes.get("axis", 0))
            end, start = (_part_of_axis(makers.get(name), axis, graph, facts) for name in node.inputs)
            if end and start and end.follows(start):
                attributes = {"shift": -end.first, "axis": axis}
                node = replace(node, op="Roll", version=18, inputs=(end.source,), attributes=attributes)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)).needed_for(graph.outputs)


def with_image_norms(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Let an instance norm of whole images, between two reshapes, be one norm of all channels, as before the export.

    What prunes channels loses them in the first reshape.
    """
    makers, nodes = graph.producers(), []
    for node in graph.nodes:
        norm = makers.get(node.inputs[0]) if node.op == "Reshape" else None
        before = makers.get(norm.inputs[0]) if norm is not None and _is_plain_norm(norm, graph) else None
        if norm is not None and before is not None and before.op == "Reshape":
            names = (before.inputs[0], norm.inputs[0], node.outputs[0])
            shapes = [[tuple(values[name].shape) for name in names] for _, values in facts]
            if all(old == new and flat[:2] == (old[0], 1) for old, flat, new in shapes):
                attributes = {"epsilon": norm.attributes.get("epsilon", 1e-5)}
                inputs = (before.inputs[0],)
                node = replace(node, op="ImageNormalization", version=18, inputs=inputs, attributes=attributes)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)).needed_for(graph.outputs)


def _is_plain_norm(node: Node, graph: TorchGraph) -> bool:
    """Return whether a node is an instance norm that multiplies by one and adds nothing."""
    if node.op != "InstanceNormalization":
        return False
    scale, bias = (graph.constants.get(name) for name in node.inputs[1:3])
    return scale is not None and bias is not None and bool((scale.value == 1).all()) and not bias.value.any()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartOfAxis:
    """Positions from ``first`` to before ``last`` of an axis of ``source`` that is ``length`` long at any batch."""

    source: str
    first: int
    last: int
    length: int

    def follows(self, start: _PartOfAxis) -> bool:
        """Return whether this is all that is left behind ``start``, which begins the axis."""
        both = (self.source, 0, self.first, self.length)
        return both == (start.source, start.first, start.last, self.last)


def _part_of_axis(node: Node | None, axis: int, graph: TorchGraph, facts: Facts) -> _PartOfAxis | None:
    """Return which part of ``axis`` a Slice takes; None where it takes others too, or not all of that part."""
    if node is None or node.op != "Slice" or len(node.inputs) < 4:
        return None
    numbers = [graph.constants.get(name) for name in node.inputs[1:]]
    lengths = {values[node.inputs[0]].shape[axis] for _, values in facts}
    if len(lengths) > 1 or any(each is None or each.value.numel() != 1 for each in numbers):
        return None
    start, end, cut, *step = [int(each.value) for each in numbers if each is not None]
    (length,), rank = lengths, facts[0][1][node.inputs[0]].ndim
    if cut % rank != axis % rank or step not in ([], [1]):
        return None
    first, last, _ = slice(start, end).indices(length)
    return _PartOfAxis(source=node.inputs[0], first=first, last=last, length=length)


def _unshaped(name: str, makers: Mapping[str, Node]) -> str:
    """Return the value that ``name`` is a reshape of."""
    while name in makers and makers[name].op in ("Reshape", "Flatten"):
        name = makers[name].inputs[0]
    return name


def _following(before: str, after: str, facts: Facts) -> list[int] | None:
    """Return a target that copies the first lengths, the batch's among them; None where it depends on the batch.

    What follows is one row, or ends with the channels that the input ends with, or is fixed.
    """
    shapes = [(list(values[before].shape), list(values[after].shape)) for _, values in facts]
    old, new = shapes[0]
    kept = 0
    while kept < min(len(old), len(new)) and all(a[kept : kept + 1] == b[kept : kept + 1] for a, b in shapes):
        kept += 1
    kept = max(0, min(kept, len(new) - 1))
    rest = new[kept:]
    ends_alike = len(old) > kept and len(new) > 0 and old[-1] == new[-1]
    if not rest or 0 in old or not (kept or ends_alike) or any(each[kept:] != rest for _, each in shapes):
        return None
    return [*[0] * kept, *rest[:-1], -1 if len(rest) == 1 or ends_alike else rest[-1]]


def _target(name: str, facts: Facts) -> list[int] | None:
    """Return the lengths of ``name``, −1 for the one that grows with the batch; None where several do."""
    shapes = [values[name].shape for _, values in facts]
    lengths = [each[0] if len(set(each)) == 1 else -1 for each in zip(*shapes, strict=True)]
    return lengths if lengths.count(-1) <= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Numbers of which some grow with the batch, and where its size is read: ``axis`` of ``source``, over ``unit``."""

    numbers: tuple[int | PerImage, ...]
    scalar: bool
    source: str
    axis: int
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """Finds how known numbers follow from the batch.

    Args:
        makers: the node that computes each value.
    """

    facts: Facts
    makers: Mapping[str, Node]

    def growth(self, name: str) -> Growth | None:
        """Return how the numbers in ``name`` follow from the batch; None where they do not simply grow with it."""
        known = [(count, values[name]) for count, values in self.facts]
        if any(each.is_meta or each.is_floating_point() for _, each in known):
            return None
        numbers = self._numbers(known)
        source = self._source(name) if numbers is not None else None
        if numbers is None or source is None:
            return None
        scalar = known[0][1].ndim == 0
        return Growth(numbers=numbers, scalar=scalar, source=source[0], axis=source[1], unit=source[2])

    def target(self, node: Node) -> Counted | None:
        """Return the target of a Reshape that moves images to or from the first axis, and leaves channels the last one.

        The number of images is counted, so that channels get the −1 and there may be fewer of them.
        """
        shapes = [(count, values[node.inputs[0]].shape, values[node.outputs[0]].shape) for count, values in self.facts]
        first, old, new = shapes[0]
        if len(shapes) < 2 or not (len(old) > 1 and len(new) > 1) or old[-1] != new[-1] or 0 in old:
            return None
        before, after = [axis[0] // first for axis in (old, new)]
        grows = all((a[0], b[0]) == (before * count, after * count) for count, a, b in shapes)
        fixed = all((a[1:], b[1:]) == (old[1:], new[1:]) for _, a, b in shapes)
        if not (grows and fixed) or old[0] == new[0]:
            return None
        return Counted(numbers=(PerImage(after), *new[1:-1], -1), scalar=False, index=0, axis=0, unit=before)

    def _numbers(self, known: Sequence[tuple[int, Tensor]]) -> tuple[int | PerImage, ...] | None:
        columns = zip(*([int(number) for number in each.reshape(-1).tolist()] for _, each in known), strict=True)
        numbers: list[int | PerImage] = []
        for column in columns:
            factor, rest = divmod(column[0], known[0][0])
            if len(set(column)) == 1:
                numbers.append(column[0])
            elif not rest and all(number == factor * count for (count, _), number in zip(known, column, strict=True)):
                numbers.append(PerImage(factor))
            else:
                return None
        return tuple(numbers)

    def _source(self, name: str) -> tuple[str, int, int] | None:
        """Return the tensor whose shape ``name`` was computed from, its axis that grows, and by how much an image."""
        pending, seen = [name], set()
        while pending:
            node = self.makers.get(pending.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            if node.op not in ("Shape", "Size"):
                pending.extend(node.inputs)
                continue
            shapes = [(count, values[node.inputs[0]].shape) for count, values in self.facts]
            for axis, length in enumerate(shapes[0][1]):
                unit, rest = divmod(length, shapes[0][0])
                grows = all(shape[axis] == unit * count for count, shape in shapes)
                if unit and not rest and grows and shapes[0][1][axis] != shapes[-1][1][axis]:
                    return node.inputs[0], axis, unit
        return None
