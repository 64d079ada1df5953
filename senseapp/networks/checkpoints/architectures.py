"""Names and shapes of the weights of all architectures, to compare a checkpoint with.

The index that ships with senseapp lists each named shape once; an architecture is a list of places in it.
``scripts/build_catalogue.py`` writes it (``scripts/recognition.py``).
"""

import gzip
import json
import math
from collections.abc import Iterable, Mapping
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
SideT = TypeVar("SideT", int, int | None)

RECOGNITION_FILE = Path(__file__).with_name("recognition.json.gz")
COMPUTED_SUFFIXES = ("num_batches_tracked", "relative_position_index", "relative_coords_table", "attn_mask")
"""Name endings of buffers that a network computes by itself; older checkpoints may lack them."""


def weights_only(shapes: Shapes) -> dict[str, Shape]:
    """Return ``shapes`` without the buffers of :data:`COMPUTED_SUFFIXES`."""
    return {name: shape for name, shape in shapes.items() if not name.endswith(COMPUTED_SUFFIXES)}


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def is_layer(shape: Shape) -> bool:
    """Return whether a weight of this shape is a matrix or kernel, and not a scale or counter."""
    return sum(length > 1 for length in shape) > 1


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Architecture:
    """The weights of one architecture.

    Attributes:
        library, name: of the architecture.
        img_size: its own image side.
        free: the weights whose shape depends on classes, channels or image size.
        places: of its weights in the index, in the order of its state dict.
    """

    library: str
    name: str
    img_size: int
    free: FreeDimensions
    places: npt.NDArray[np.intp]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all weights, as built with the architecture's own settings (1,000 classes without any)."""
        weights = load_index().weights
        return dict(weights[place] for place in self.places)

    @property
    def fixed(self) -> dict[str, Shape]:
        """The weights whose shape is fixed by the architecture's name."""
        return {name: shape for name, shape in self.shapes.items() if name not in self.free.patterns}


class Index(NamedTuple):
    """Each named shape once, and all architectures, timm's first."""

    weights: list[tuple[str, Shape]]
    architectures: tuple[Architecture, ...]


@cache
def load_index() -> Index:
    """Return the content of :data:`RECOGNITION_FILE`."""
    content = json.loads(gzip.decompress(RECOGNITION_FILE.read_bytes()))
    known = [
        Architecture(
            library=library,
            name=name,
            img_size=img_size,
            free=cattrs.structure(free, FreeDimensions),
            places=np.cumsum(steps),
        )
        for library, name, img_size, free, steps in content["architectures"]
    ]  # list first: growing a long tuple slows the collector
    return Index([(name, tuple(shape)) for name, shape in content["weights"]], tuple(known))


def architecture_named(library: str, name: str) -> Architecture | None:
    """Return one architecture (a weights tag after a dot is ignored), or None."""
    wanted = library, name.split(".", 1)[0]
    return next((item for item in load_index().architectures if (item.library, item.name) == wanted), None)
