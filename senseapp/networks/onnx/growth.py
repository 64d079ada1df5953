"""Numbers that grow with the batch: which they are, and where a graph reads the number of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from senseapp.networks.onnx.infer import Facts
from senseapp.networks.onnx.modules import Counted, PerImage
from senseapp.networks.onnx.torch_graph import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """Finds how known numbers follow from the batch.

    Args:
        makers: the node that computes each value.
    """

    facts: Facts
    makers: Mapping[str, Node]

    def growth(self, name: str) -> tuple[str, Counted] | None:
        """Return how the numbers in ``name`` follow from the batch, and the tensor that it is counted by.

        None where they do not simply grow with it.
        """
        known = [(count, values[name]) for count, values in self.facts]
        if any(each.is_meta or each.is_floating_point() for _, each in known):
            return None
        numbers = self._numbers(known)
        source = self._source(name) if numbers is not None else None
        if numbers is None or source is None:
            return None
        scalar = known[0][1].ndim == 0
        return source[0], Counted(numbers=numbers, scalar=scalar, index=0, axis=source[1], unit=source[2])

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
