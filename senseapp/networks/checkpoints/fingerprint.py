"""Fingerprints of architectures: hashes of parameter names and shapes, to compare a checkpoint with 1,450 of them.

The *signature* is the sum (modulo 2^64) of one hash per (name, shape): independent of order, and weights whose shape
depends on the number of classes, the input channels or the image size can be subtracted.
The *sketch* holds the smallest hashes: the share of them in a checkpoint estimates the share of the architecture's
weights. ``scripts/build_catalogue.py`` writes the fingerprints that ship with senseapp (``scripts/fingerprints.py``).

Source: Broder, "On the resemblance and containment of documents" (1997), section 4 (bottom-k sketch).
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
COMPUTED_SUFFIXES = ("num_batches_tracked", "relative_position_index", "relative_coords_table", "attn_mask")
"""Name endings of buffers that a network computes by itself; older checkpoints may lack them."""
MODULUS = 1 << 64  # sums stay in 64 bits, as the hashes


def weights_only(shapes: Shapes) -> dict[str, Shape]:
    """Return ``shapes`` without the buffers of :data:`COMPUTED_SUFFIXES`."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(COMPUTED_SUFFIXES)}


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


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
            name in shapes
            and len(shapes[name]) == len(self.patterns[name])
            and all(a in (None, b) for a, b in zip(self.patterns[name], shapes[name], strict=True))
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
