"""Numbers that grow with the batch: which they are, and where a graph reads the number of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from senseapp.networks.onnx.infer import Facts
from senseapp.networks.onnx.modules import Counted, PerImage
from senseapp.networks.onnx.torch_graph import Node


def counted_numbers(name: str, facts: Facts, makers: Mapping[str, Node]) -> tuple[str, Counted] | None:
    """Return how the numbers in ``name`` follow from the batch, and the tensor that it is counted by.

    None where they do not simply grow with it. ``makers`` are the nodes that compute each value.
    """
    known = [(count, values[name]) for count, values in facts]
    if any(each.is_meta or each.is_floating_point() for _, each in known):
        return None
    numbers = _per_image(known)
    source = _source(name, facts, makers) if numbers is not None else None
    if numbers is None or source is None:
        return None
    tensor, axis, unit = source
    return tensor, Counted(numbers=numbers, scalar=known[0][1].ndim == 0, index=0, axis=axis, unit=unit)


def counted_target(node: Node, facts: Facts) -> Counted | None:
    """Return the target of a Reshape that moves images to or from the first axis, and leaves channels the last one.

    The number of images is counted, so that channels get the −1 and there may be fewer of them.
    """
    shapes = [(count, values[node.inputs[0]].shape, values[node.outputs[0]].shape) for count, values in facts]
    first, old, new = shapes[0]
    if len(shapes) < 2 or not (len(old) > 1 and len(new) > 1) or old[-1] != new[-1] or 0 in old:
        return None
    before, after = (axis[0] // first for axis in (old, new))
    follows = all(
        (tuple(a), tuple(b)) == ((before * count, *old[1:]), (after * count, *new[1:])) for count, a, b in shapes
    )
    if not follows or old[0] == new[0]:
        return None
    return Counted(numbers=(PerImage(after), *new[1:-1], -1), scalar=False, index=0, axis=0, unit=before)


def _per_image(known: Sequence[tuple[int, Tensor]]) -> tuple[int | PerImage, ...] | None:
    counts = [count for count, _ in known]
    numbers: list[int | PerImage] = []
    for column in zip(*(map(int, each.reshape(-1).tolist()) for _, each in known), strict=True):
        factor = column[0] // counts[0]
        if len(set(column)) == 1:
            numbers.append(column[0])
        elif list(column) == [factor * count for count in counts]:
            numbers.append(PerImage(factor))
        else:
            return None
    return tuple(numbers)


def _source(name: str, facts: Facts, makers: Mapping[str, Node]) -> tuple[str, int, int] | None:
    """Return the tensor whose shape ``name`` was computed from, its axis that grows, and by how much an image."""
    pending, seen = [name], set()
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op not in ("Shape", "Size"):
            pending.extend(node.inputs)
            continue
        counts = [count for count, _ in facts]
        for axis, lengths in enumerate(zip(*(values[node.inputs[0]].shape for _, values in facts), strict=True)):
            unit = lengths[0] // counts[0]
            if unit and list(lengths) == [unit * count for count in counts] and lengths[0] != lengths[-1]:
                return node.inputs[0], axis, unit
    return None
