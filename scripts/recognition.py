"""Weights of architectures whose shapes are free, found by two builds of each, and the file that all ship in."""

import gzip
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from senseapp.networks.checkpoints.architectures import BuiltWith, FreeDimensions, Shape, Shapes, SizeRule


def find_free_dimensions(
    shapes: Shapes, built: BuiltWith[int], other_shapes: Shapes, other: BuiltWith[int]
) -> FreeDimensions:
    """Compare one architecture built for ``built`` and for ``other``; names and numbers of axes are the same."""
    patterns = {
        name: tuple(a if a == b else None for a, b in zip(shape, other_shapes[name], strict=True))
        for name, shape in shapes.items()
        if other_shapes[name] != shape
    }
    changed = list(_changed_lengths(shapes, other_shapes))
    classes = ((n, axis) for n, axis, a, b in changed if (a, b) == (built.num_classes, other.num_classes))
    channels = (
        (name, axis, a // built.in_chans)
        for name, axis, a, b in changed
        if built.in_chans != other.in_chans and a % built.in_chans == 0 and a // built.in_chans * other.in_chans == b
    )
    rules = (_size_rule(*change, built.img_size, other.img_size) for change in changed)
    size = next(filter(None, rules), None) if built.img_size != other.img_size else None
    return FreeDimensions(patterns=patterns, classes=next(classes, None), channels=next(channels, None), size=size)


def _changed_lengths(shapes: Shapes, other_shapes: Shapes) -> Iterator[tuple[str, int, int, int]]:
    for name, shape in shapes.items():
        for axis, (length, other_length) in enumerate(zip(shape, other_shapes[name], strict=True)):
            if length != other_length:
                yield name, axis, length, other_length


def _size_rule(name: str, axis: int, a: int, b: int, side_a: int, side_b: int) -> SizeRule | None:
    """Return the simplest law through both points with plausible constants; None if there is none."""
    factor = (b - a) / (side_b**2 - side_a**2)
    offset = a - factor * side_a**2
    # class, distillation and register tokens of vision transformers, of which there are a few
    if factor > 0 and _is_whole(offset) and 0 <= round(offset) <= 16:
        return SizeRule(name=name, axis=axis, law="area", offset=round(offset), factor=factor)
    for extra in (extra for extra in (0, 3) if extra < min(a, b)):  # none, or the three of BEiT for its class token
        root_a, root_b = math.sqrt(a - extra), math.sqrt(b - extra)
        factor = (root_b - root_a) / (side_b - side_a)
        if factor > 0 and abs(root_a - factor * side_a + 1) < 1e-6:  # 2·w − 1 relative positions along each axis
            return SizeRule(name=name, axis=axis, law="window", offset=-1, factor=factor, extra=extra)
    factor = (b - a) / (side_b - side_a)
    offset = a - factor * side_a
    if factor > 0 and _is_whole(offset) and round(offset) in (-1, 0):
        return SizeRule(name=name, axis=axis, law="side", offset=round(offset), factor=factor)
    return None


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


class Surveyed(NamedTuple):
    """An architecture as the index describes it; ``shapes`` are those of its weights, in order."""

    library: str
    name: str
    img_size: int
    shapes: Shapes
    free: FreeDimensions


def pack_index(surveyed: Iterable[Surveyed]) -> bytes:
    """Return the content of the index file; equal architectures give equal bytes."""
    places: dict[tuple[str, Shape], int] = {}
    rows = []
    for item in surveyed:
        own = [places.setdefault(weight, len(places)) for weight in item.shapes.items()]
        steps = np.diff(own, prepend=0).tolist()  # mostly 1, which takes little space
        rows.append([item.library, item.name, item.img_size, asdict(item.free), steps])
    content = json.dumps({"weights": list(places), "architectures": rows}, separators=(",", ":"))
    return gzip.compress(content.encode(), mtime=0)
