"""Numbers that are known before a graph runs: the same for any batch, or growing with it.

``facts`` are the values of a graph for one or more numbers of images, each with that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from senseapp.networks.onnx.graph import Constant, Graph, Node
from senseapp.networks.onnx.infer import Values
from senseapp.networks.onnx.modules import PerImage

Facts = Sequence[tuple[int, Values]]


def without_known(graph: Graph, facts: Facts) -> Graph:
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


def with_plain_targets(graph: Graph, facts: Facts) -> Graph:
    """Give Reshape a constant target with −1 for the batch, and drop what only computed numbers for it.

    One that flattens each image gets 0 for the batch and −1 for the rest, which also holds with fewer channels.
    """
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        if node.op == "Reshape":
            known = node.inputs[1] in constants
            target = [0, -1] if _flattens(node, facts) else None if known else _target(node.outputs[0], facts)
            if target is not None:
                name = f"{node.name} target"
                constants[name] = Constant(value=torch.tensor(target, dtype=torch.int64))
                node = replace(node, inputs=(node.inputs[0], name), attributes={})  # 0 copies a length
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants).needed_for(graph.outputs)


def _flattens(node: Node, facts: Facts) -> bool:
    """Return whether a Reshape makes one row of each image, whatever their number."""
    shapes = [(values[node.inputs[0]].shape, values[node.outputs[0]].shape) for _, values in facts]
    return all(len(new) == 2 and old[:1] == new[:1] for old, new in shapes)


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
