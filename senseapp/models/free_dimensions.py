"""Which dimensions of an architecture's weights follow from its classes, input channels and image size.

Found by building it twice with different ones and comparing (:func:`find_free_dimensions`); used to read the three
off a checkpoint (:meth:`FreeDimensions.read_off`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from senseapp.models.signature import Shapes

Pattern = tuple[int | None, ...]
Law = Literal["area", "window", "side"]
_MAX_EXTRA_TOKENS = 16
_EXTRA_BIASES = (0, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltWith:
    """What a network was built for: classes, input channels, and the image side in pixels."""

    num_classes: int
    in_chans: int
    img_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRule:
    """How one length n follows from the image side s.

    ``area``: n = offset + factor·s² (one token per patch, and class tokens);
    ``side``: n = offset + factor·s;
    ``window``: n = extra + (offset + factor·s)² (one bias per relative position, and BEiT's three for its token).
    """

    name: str
    axis: int
    law: Law
    offset: int
    factor: float
    extra: int = 0

    def side(self, length: int) -> int | None:
        """Return the image side that gives ``length``; None if no whole number does."""
        value = math.sqrt(max(length - self.extra, 0)) if self.law == "window" else float(length)
        ratio = (value - self.offset) / self.factor
        if ratio <= 0:
            return None
        side = math.sqrt(ratio) if self.law == "area" else ratio
        return round(side) if abs(side - round(side)) < 1e-3 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOff:
    """Classes, input channels and image side, each None where the weights do not tell."""

    num_classes: int | None
    in_chans: int | None
    img_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDimensions:
    """The weights of one architecture whose shape is not fixed by its name.

    Attributes:
        patterns: their names, and their shapes with None for the lengths that may vary.
        classes: (name, axis) whose length is the number of classes; None without a classifier.
        channels: (name, axis, length per input channel); None where the channels cannot be chosen.
        size: how to read the image side; None where nothing depends on it, or in no simple way.
    """

    patterns: Mapping[str, Pattern]
    classes: tuple[str, int] | None
    channels: tuple[str, int, int] | None
    size: SizeRule | None

    def fit(self, shapes: Shapes, names: Iterable[str] | None = None) -> bool:
        """Return whether these weights (or those of ``names``) are in ``shapes``, alike where they may not vary."""
        wanted = self.patterns if names is None else names
        return all(name in shapes and _alike(self.patterns[name], shapes[name]) for name in wanted)

    def read_off(self, shapes: Shapes) -> ReadOff:
        """Return what the network behind ``shapes`` was built for."""
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
        return ReadOff(num_classes=num_classes, in_chans=in_chans, img_size=img_size)


def _alike(pattern: Pattern, shape: tuple[int, ...]) -> bool:
    return len(pattern) == len(shape) and all(
        length in (None, found) for length, found in zip(pattern, shape, strict=True)
    )


def _length(shapes: Shapes, name: str, axis: int) -> int | None:
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else None


def find_free_dimensions(shapes: Shapes, built: BuiltWith, other_shapes: Shapes, other: BuiltWith) -> FreeDimensions:
    """Compare one architecture built for ``built`` and for ``other``; names and numbers of axes are the same."""
    patterns = {
        name: tuple(a if a == b else None for a, b in zip(shape, other_shapes[name], strict=True))
        for name, shape in shapes.items()
        if other_shapes[name] != shape
    }
    changed = list(_changed_lengths(shapes, other_shapes))
    classes = next(((n, axis) for n, axis, a, b in changed if (a, b) == (built.num_classes, other.num_classes)), None)
    channels = size = None
    if built.in_chans != other.in_chans:
        channels = next(
            (
                (name, axis, a // built.in_chans)
                for name, axis, a, b in changed
                if a % built.in_chans == 0 and a // built.in_chans * other.in_chans == b
            ),
            None,
        )
    if built.img_size != other.img_size:
        rules = (_size_rule(*change, built.img_size, other.img_size) for change in changed)
        size = next((rule for rule in rules if rule is not None), None)
    return FreeDimensions(patterns=patterns, classes=classes, channels=channels, size=size)


def _changed_lengths(shapes: Shapes, other_shapes: Shapes) -> Iterator[tuple[str, int, int, int]]:
    for name, shape in shapes.items():
        for axis, (length, other_length) in enumerate(zip(shape, other_shapes[name], strict=True)):
            if length != other_length:
                yield name, axis, length, other_length


def _size_rule(name: str, axis: int, a: int, b: int, side_a: int, side_b: int) -> SizeRule | None:
    """Return the simplest law through both points whose constants make sense; None if there is none."""
    factor = (b - a) / (side_b**2 - side_a**2)
    offset = a - factor * side_a**2
    if factor > 0 and _is_whole(offset) and 0 <= round(offset) <= _MAX_EXTRA_TOKENS:
        return SizeRule(name=name, axis=axis, law="area", offset=round(offset), factor=factor)
    for extra in (extra for extra in _EXTRA_BIASES if extra < min(a, b)):
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
