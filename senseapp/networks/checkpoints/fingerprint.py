"""Fingerprints of architectures: hashes of parameter names and shapes, to compare a checkpoint with 1,450 of them.

The *signature* is the sum (modulo 2^64) of one hash per (name, shape): independent of order, and weights whose shape
depends on the number of classes, the input channels or the image size can be subtracted.
:func:`find_free_dimensions` finds these from two builds of an architecture. The *sketch* holds the smallest hashes:
the share of them in a checkpoint estimates the share of the architecture's weights.
``scripts/build_catalogue.py`` writes the fingerprints that ship with senseapp.

Source: Broder, "On the resemblance and containment of documents" (1997), section 4 (bottom-k sketch).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import cattrs
import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Pattern = tuple[int | None, ...]
"""A shape, with None for a free length."""
Sketch = npt.NDArray[np.uint32]
SideT = TypeVar("SideT", int, int | None)

RECOGNITION_FILE = Path(__file__).with_name("recognition.json.gz")
SKETCH_SIZE = 128  # the standard error of a share is at most 1 / (2 √128), 4.4 %; stored for each architecture
COMPUTED_SUFFIXES = ("num_batches_tracked", "relative_position_index", "relative_coords_table", "attn_mask")
"""Name endings of buffers that a network computes by itself; older checkpoints may lack them."""
MODULUS = 1 << 64  # sums stay in 64 bits, as the hashes


def weights_only(shapes: Shapes) -> dict[str, Shape]:
    """Return ``shapes`` without the buffers of :data:`COMPUTED_SUFFIXES`."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(COMPUTED_SUFFIXES)}


def is_layer(shape: Shape) -> bool:
    """Return whether a weight of this shape is a matrix or kernel, and not a scale or counter."""
    return sum(length > 1 for length in shape) > 1


def entry_hash(name: str, shape: Shape) -> int:
    """Return a 64-bit hash of one named shape; the same on every machine and in every process."""
    text = f"{name}:{','.join(map(str, shape))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def signature_of(shapes: Shapes) -> int:
    """Return the sum of the entries' hashes, modulo 2^64."""
    return sum(entry_hash(name, shape) for name, shape in shapes.items()) % MODULUS


def by_place(shapes: Sequence[Shape], places: Iterable[int] | None = None) -> dict[str, Shape]:
    """Return the shapes (or those at ``places``) named by their place, so that their signature covers their order."""
    return {str(place): shapes[place] for place in (range(len(shapes)) if places is None else places)}


def sketch_of(shapes: Shapes) -> Sketch:
    """Return the ``SKETCH_SIZE`` smallest hashes (their upper 32 bits), ascending; fewer for a small network."""
    hashes = sorted({entry_hash(name, shape) >> 32 for name, shape in shapes.items()})
    return np.array(hashes[:SKETCH_SIZE], dtype=np.uint32)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWith(Generic[SideT]):
    """Sizes that a network was built for: classes, input channels, image side in pixels; None if not known."""

    num_classes: SideT
    in_chans: SideT
    img_size: SideT


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRule:
    """Law for one length n of a shape as a function of the image side s.

    ``area``: n = offset + factor·s² (one token per patch, and class tokens);
    ``side``: n = offset + factor·s;
    ``window``: n = extra + (offset + factor·s)² (one bias per relative position, and BEiT's three for its token).
    """

    name: str
    axis: int
    law: Literal["area", "window", "side"]
    offset: int
    factor: float
    extra: int = 0

    def side(self, length: int) -> int | None:
        """Return the image side that gives ``length``; None if no integer does."""
        value = math.sqrt(max(length - self.extra, 0)) if self.law == "window" else float(length)
        ratio = (value - self.offset) / self.factor
        if ratio <= 0:
            return None
        side = math.sqrt(ratio) if self.law == "area" else ratio
        return round(side) if abs(side - round(side)) < 1e-3 else None


def fits_pattern(shape: Shape, pattern: Pattern) -> bool:
    """Return whether ``shape`` matches ``pattern``."""
    return len(shape) == len(pattern) and all(a in (None, b) for a, b in zip(pattern, shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDimensions:
    """The weights of one architecture whose shape is not fixed by its name.

    Attributes:
        patterns: their names, and their shapes with None for free lengths.
        classes: (name, axis) whose length is the number of classes; None without a classifier.
        channels: (name, axis, length per input channel); None where the channels are fixed.
        size: rule for the image side; None where no length depends on it, or by no simple law.
    """

    patterns: Mapping[str, Pattern]
    classes: tuple[str, int] | None
    channels: tuple[str, int, int] | None
    size: SizeRule | None

    def fit(self, shapes: Shapes, names: Iterable[str] | None = None) -> bool:
        """Return whether these weights (or those of ``names``) are in ``shapes``, equal in their fixed lengths."""
        return all(
            name in shapes and fits_pattern(shapes[name], self.patterns[name])
            for name in (self.patterns if names is None else names)
        )

    def read_off(self, shapes: Shapes) -> BuiltWith[int | None]:
        """Return the sizes that the network with ``shapes`` was built for."""
        num_classes = in_chans = img_size = None
        if self.classes is not None:
            num_classes = _length(shapes, *self.classes)
        if self.channels is not None:
            name, axis, per_channel = self.channels
            length = _length(shapes, name, axis)
            in_chans = length // per_channel if length and length % per_channel == 0 else None
        if self.size is not None:
            length = _length(shapes, self.size.name, self.size.axis)
            img_size = self.size.side(length) if length else None
        return BuiltWith(num_classes=num_classes, in_chans=in_chans, img_size=img_size)


def _length(shapes: Shapes, name: str, axis: int) -> int | None:
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else None


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


class OrderedWeights(NamedTuple):
    """Names and shapes of a checkpoint's weights in one order, and the signature of the shapes by place."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    signature: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Names and shapes of one architecture in compact form.

    Attributes:
        library, name: the architecture.
        img_size: its own image side.
        fixed_signature: of the weights that are not free.
        sketch: of all weights, as built with the architecture's own settings.
        free: the weights whose shape depends on classes, channels or image size.
        num_weights: number of weights in its state dict.
        ordered_signature: of the fixed weights by place in the state dict, without names.
        free_places: places of the free ones, in the order of their patterns.
    """

    library: str
    name: str
    img_size: int
    fixed_signature: int
    sketch: Sketch
    free: FreeDimensions
    num_weights: int
    ordered_signature: int
    free_places: tuple[int, ...]

    def fits(self, shapes: Shapes, signature: int) -> bool:
        """Return whether ``shapes``, whose total is ``signature``, fit this architecture but for free lengths."""
        free = signature_of({name: shapes[name] for name in self.free.patterns if name in shapes})
        return (signature - free) % MODULUS == self.fixed_signature and self.free.fit(shapes)

    def free_shapes(self, ordered: OrderedWeights) -> dict[str, Shape] | None:
        """Return the shapes of the free weights among ``ordered`` under this architecture's names.

        None if the shapes, in this order, are not those of the architecture.
        """
        shapes = ordered.shapes
        if len(shapes) != self.num_weights:
            return None
        if (ordered.signature - signature_of(by_place(shapes, self.free_places))) % MODULUS != self.ordered_signature:
            return None
        found = {name: shapes[place] for name, place in zip(self.free.patterns, self.free_places, strict=True)}
        return found if self.free.fit(found) else None


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
        sketch=sketch_of(shapes),
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


@cache
def load_fingerprints() -> tuple[Fingerprint, ...]:
    """Return the fingerprints of all architectures, timm's first."""
    rows = json.loads(gzip.decompress(RECOGNITION_FILE.read_bytes()))
    fingerprints = [_unpack(*row) for row in rows]  # list first: growing a long tuple slows the collector
    return tuple(fingerprints)


def _unpack(
    library: str, name: str, img_size: int, signature: str, sketch: str, free: dict[str, Any], order: list[Any]
) -> Fingerprint:
    num_weights, ordered, places = order
    return Fingerprint(
        library=library,
        name=name,
        img_size=img_size,
        fixed_signature=int(signature, 16),
        sketch=np.frombuffer(base64.b85decode(sketch), dtype="<u4"),
        free=cattrs.structure(free, FreeDimensions),
        num_weights=num_weights,
        ordered_signature=int(ordered, 16),
        free_places=tuple(places),
    )
