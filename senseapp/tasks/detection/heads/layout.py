"""The layout of a detector's raw outputs, and the cells of its maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from senseapp.core.errors import UnsupportedModel
from senseapp.core.texts import plural

if TYPE_CHECKING:
    from torch import Tensor

STRIDES = (8, 16, 32)
"""Of YOLO's three maps."""
_OTHER_STRIDES = ((8, 16, 32, 64), (4, 8, 16, 32), (8, 16), (16, 32))  # of larger and smaller members of the family
BINS = 16  # of a distance, in YOLOv8 to v11
DISTANCES = 4 * BINS
"""Channels of the distances to the four sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """Positions and meaning of the numbers in a detector's raw tensors.

    Attributes:
        name: of the layout, as :func:`~senseapp.tasks.detection.heads.decode` knows it.
        num_classes: a background included.
        num_boxes: of each image; 0 where maps tell it.
        num_unread: columns of each box, or points, that mean something else and are not read.
        first_class: column of the first class, where boxes and classes share a tensor.
        has_object: whether the column before the classes is the score of an object.
        size: (height, width) of the input; (0, 0) where nothing depends on it.
        strides: of the maps, in pixels.
        probabilities: whether class values are probabilities already; else logits.
        relative: whether boxes are shares of the input's sides; else pixels.
        as_corners: whether boxes are corners; else centre, width and height.
        anchors_last: whether the last axis lists the boxes; else the second.
        background: the class of a softmax that stands for no object.
        order: of the tensors: those of classes, boxes and offsets, by place in the flattened output.
        family: networks that always use this layout, by name; empty where several differ in how they take pictures.
    """

    name: str
    num_classes: int
    num_boxes: int = 0
    num_unread: int = 0
    first_class: int = 0
    has_object: bool = False
    size: tuple[int, int] = (0, 0)
    strides: tuple[int, ...] = ()
    probabilities: bool = False
    relative: bool = False
    as_corners: bool = False
    anchors_last: bool = False
    background: Literal["", "first", "last"] = ""
    order: tuple[int, ...] = ()
    family: str = ""

    @property
    def words(self) -> str:
        """The layout, as part of a sentence."""
        classes = plural(self.num_classes, "class", "classes")
        if self.background:
            classes = f"a softmax of {classes}, the {self.background} the background"
        maps = f"maps of strides {', '.join(map(str, self.strides))}"
        form = "corners" if self.as_corners else "centre, width and height"
        boxes = f"{self.num_boxes:,} boxes ({form} in {'shares of a side' if self.relative else 'pixels'})"
        score = " and an object's score" if self.has_object else ""
        unread = f"; {plural(self.num_unread, 'further column')} of each box not read" if self.num_unread else ""
        points = "; further maps are not read" if self.num_unread else ""
        distances = f"distances in {BINS} steps (DFL) and {classes}, as of YOLOv8"
        return {
            "distributions": f"{self.num_boxes:,} cells with {distances}",
            "maps of distributions": f"{maps} with {distances}",
            "grid": f"{self.num_boxes:,} boxes in cells with {classes}{score}, as of YOLOX",
            "distances by stride": f"{maps} with distances in steps and {classes}, as of PicoDet and NanoDet",
            "anchored maps": f"{maps} with three anchors, taken to be those for COCO, and {classes}, as of YOLOv5",
            "centre maps": f"maps of centres for {classes}, with sizes, as of CenterNet{points}",
            "centre maps of logarithms": f"maps of centres for {classes}, with logarithms of heights and widths, as of "
            f"CenterFace{points}",
        }.get(self.name, f"{boxes} with {classes}{score}{unread}")


def num_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """Return the number of cells of all maps of an input of ``size`` (height, width)."""
    return sum(math.prod(-(-side // stride) for side in size) for stride in strides)


def strides_of(count: int, size: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the strides of maps that have ``count`` cells together; empty where there are none."""
    sets = (STRIDES, *_OTHER_STRIDES) if size else ()
    return next((strides for strides in sets if num_cells(size or (0, 0), strides) == count), ())


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
