"""Numbers that follow the images and the channels: targets of reshapes, sizes and repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from senseapp.networks.onnx.infer import Facts
from senseapp.networks.onnx.modules import Counted, Length
from senseapp.networks.onnx.torch_graph import Node

Number = int | Length


def reshape_target(node: Node, facts: Facts) -> Counted | None:
    """Return the target of a Reshape in lengths of its input, for any number of images and perhaps fewer channels.

    The first lengths stay as they are. What is left in one axis, and channels that stay the last axis, get −1.
    None where the target does not follow from the input so.
    """
    shapes = [(tuple(values[node.inputs[0]].shape), tuple(values[node.outputs[0]].shape)) for _, values in facts]
    old, new = shapes[0]
    kept = 0
    while kept < min(len(old), len(new) - 1) and all(a[kept] == b[kept] for a, b in shapes):
        kept += 1
    ends_alike = len(old) > kept < len(new) and old[-1] == new[-1]
    grown = _grown([a for a, _ in shapes], facts)
    rest = _with_images([b[kept:] for _, b in shapes], facts, grown)
    if not rest or 0 in old or not (kept or ends_alike):
        return None
    last = -1 if len(rest) == 1 or ends_alike else rest[-1]
    numbers: tuple[Number, ...] = (*map(Length, range(kept)), *rest[:-1], last)
    return Counted(numbers=numbers, scalar=False, index=0)


def counted_numbers(name: str, facts: Facts, makers: Mapping[str, Node]) -> tuple[str, Counted] | None:
    """Return how the numbers in ``name`` follow from the batch, and the tensor that it is counted by.

    None where they do not simply grow with it. ``makers`` are the nodes that compute each value.
    """
    known = [values[name] for _, values in facts]
    if any(each.is_meta or each.is_floating_point() for each in known):
        return None
    for source in _measured(name, makers):
        grown = _grown([tuple(values[source].shape) for _, values in facts], facts)
        numbers = _with_images([each.reshape(-1).tolist() for each in known], facts, grown)
        if grown is not None and numbers is not None:
            return source, Counted(numbers=numbers, scalar=known[0].ndim == 0, index=0)
    return None


def _grown(shapes: Sequence[Sequence[int]], facts: Facts) -> Length | None:
    """Return the number of images as a length of the first axis that grows with it; None where none does."""
    for axis, lengths in enumerate(zip(*shapes, strict=True)):
        unit = lengths[0] // facts[0][0]
        if unit and lengths[0] != lengths[-1] and list(lengths) == [unit * count for count, _ in facts]:
            return Length(axis, unit=unit)
    return None


def _with_images(lists: Sequence[Sequence[int]], facts: Facts, images: Length | None) -> tuple[Number, ...] | None:
    """Return numbers that are ``lists`` for the numbers of images of ``facts``; None where one does not grow so."""
    numbers: list[Number] = []
    for column in zip(*lists, strict=True):
        factor = column[0] // facts[0][0]
        if len(set(column)) == 1:
            numbers.append(column[0])
        elif images is not None and list(column) == [factor * count for count, _ in facts]:
            numbers.append(Length(images.axis, unit=images.unit, factor=factor))
        else:
            return None
    return tuple(numbers)


def _measured(name: str, makers: Mapping[str, Node]) -> list[str]:
    """Return the tensors from whose shapes ``name`` was computed."""
    pending, seen, found = [name], set[str](), list[str]()
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op in ("Shape", "Size"):
            found.append(node.inputs[0])
        else:
            pending.extend(node.inputs)
    return found
