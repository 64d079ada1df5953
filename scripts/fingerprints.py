"""Fingerprints of architectures, computed from two builds of each, and the file that they ship in."""

import base64
import gzip
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import numpy as np

from senseapp.networks.checkpoints.fingerprint import (
    BuiltWith,
    Fingerprint,
    FreeDimensions,
    Shapes,
    SizeRule,
    Sketch,
    by_place,
    entry_hash,
    signature_of,
    weights_only,
)

_SKETCH_SIZE = 128  # the standard error of a share is at most 1 / (2 √128), 4.4 %


def _sketch_of(shapes: Shapes) -> Sketch:
    """Return the ``_SKETCH_SIZE`` smallest hashes (their upper 32 bits), ascending; fewer for a small network."""
    hashes = sorted({entry_hash(name, shape) >> 32 for name, shape in shapes.items()})
    return np.array(hashes[:_SKETCH_SIZE], dtype=np.uint32)


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


def fingerprint_of(
    library: str,
    name: str,
    *,
    shapes: Shapes,
    built: BuiltWith[int],
    other_shapes: Shapes,
    other: BuiltWith[int],
) -> Fingerprint:
    """Return the fingerprint of an architecture from two builds, for ``built`` and for ``other``."""
    shapes, other_shapes = weights_only(shapes), weights_only(other_shapes)
    free = find_free_dimensions(shapes, built, other_shapes, other)
    places = {key: place for place, key in enumerate(shapes)}
    fixed = {key: shape for key, shape in shapes.items() if key not in free.patterns}
    return Fingerprint(
        library=library,
        name=name,
        img_size=built.img_size,
        fixed_signature=signature_of(fixed),
        sketch=_sketch_of(shapes),
        free=free,
        num_weights=len(shapes),
        ordered_signature=signature_of(by_place(list(shapes.values()), (places[key] for key in fixed))),
        free_places=tuple(places[key] for key in free.patterns),
    )


def pack_fingerprints(fingerprints: Iterable[Fingerprint]) -> bytes:
    """Return the content of the index file; equal fingerprints give equal bytes."""
    rows = []
    for item in fingerprints:
        sketch = base64.b85encode(item.sketch.astype("<u4").tobytes()).decode()
        order = [item.num_weights, f"{item.ordered_signature:x}", item.free_places]
        signature = f"{item.fixed_signature:x}"
        rows.append([item.library, item.name, item.img_size, signature, sketch, asdict(item.free), order])
    return gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0)
