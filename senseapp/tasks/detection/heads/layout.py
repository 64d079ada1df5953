"""The layout of a detector's raw outputs, and the cells of its maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from senseapp.core.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

STRIDES = (8, 16, 32)  # of YOLO's three maps
BINS = 16  # of a distance, in YOLOv8 to v11
DISTANCES = 4 * BINS
"""Channels of the distances to the four sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """How raw tensors become rows.

    Attributes:
        name: of the layout, as :func:`~senseapp.tasks.detection.heads.recognition.decode` knows it.
        sentence: what was recognised, for people.
        num_classes: a background included.
        size: (height, width) of the input; (0, 0) where nothing depends on it.
        strides: of the maps, in pixels.
        probabilities: whether class values are probabilities already.
        relative: whether boxes are shares of the input's sides.
        as_corners: whether boxes are corners; else centre, width and height.
        anchors_last: whether boxes lie along the last axis.
        background_last: whether the background is the last class of a softmax.
        order: of the tensors: those of classes, boxes and offsets, by place in the flattened output.
    """

    name: str
    sentence: str
    num_classes: int
    size: tuple[int, int] = (0, 0)
    strides: tuple[int, ...] = ()
    probabilities: bool = False
    relative: bool = False
    as_corners: bool = False
    anchors_last: bool = False
    background_last: bool = False
    order: tuple[int, ...] = ()


def num_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """Return the number of cells of all maps of an input of ``size`` (height, width)."""
    return sum(math.prod(-(-side // stride) for side in size) for stride in strides)


def square_of(count: int, strides: Sequence[int]) -> tuple[int, int] | None:
    """Return the size of the square input that has so many cells; None where there is none."""
    step = strides[-1]
    for side in range(step, 4097, step):
        if num_cells((side, side), strides) == count:
            return side, side
    return None


def in_pixels(boxes: Tensor, layout: HeadLayout) -> Tensor:
    """Return boxes (..., 4) in pixels; raise UnsupportedModel for shares of an input of unknown size."""
    if not layout.relative:
        return boxes
    height, width = layout.size
    if not height:
        raise UnsupportedModel("Boxes are shares of the input's sides, and the size of the input is not known.")
    return boxes * boxes.new_tensor([width, height, width, height])
