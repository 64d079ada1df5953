"""The layout of a detector's raw outputs, which decodes them to rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.metrics.detection.rows import RowKind, assembled
from senseapp.metrics.predictions import tensors_in
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.reading import OutputReader, UsualInput

STRIDES = (8, 16, 32)
"""Of YOLO's three maps."""
DISTANCES = 4 * 16
"""Channels of the distances to the four sides, in YOLOv8 to v11."""
YOLO = "YOLOv5 to v11"
_USUAL_INPUTS = {
    each.family: each
    for each in (
        UsualInput(family=YOLO),
        UsualInput(family="YOLOX", values="bytes", channel_order="bgr", fit="corner"),
        UsualInput(family="CenterFace", values="bytes"),
        UsualInput(family="PicoDet", values="imagenet", channel_order="", fit="stretch"),
    )
}
_LARGEST = 2**14  # classes, and pixels of a side
_NEAR_ZERO = 1e-6  # probabilities below, and as near to 1, have a logit of this
_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)  # widths and heights in pixels, for strides 8, 16 and 32; ultralytics/yolov5, models/yolov5s.yaml
_BOXES = "{boxes:,} boxes ({form}) with {classes}{score}{unread}"
_WORDS = {
    "boxes and classes": _BOXES,
    "softmax pair": _BOXES,
    "sigmoid pair": _BOXES,
    "distributions": "{boxes:,} cells with distances in 16 steps (DFL) and {classes}, as of YOLOv8",
    "maps of distributions": "{maps} with distances in 16 steps (DFL) and {classes}, as of YOLOv8",
    "grid": "{boxes:,} boxes in cells with {classes}{score}, as of YOLOX",
    "distances by stride": "{maps} with distances in steps and {classes}, as of PicoDet, NanoDet and RKNN",
    "anchored maps": "{maps} with three anchors, taken to be those for COCO, and {classes}, as of YOLOv5",
    "anchored maps of logarithms": "{maps} with three anchors, taken to be those for COCO, and {classes}, as of YOLOv3",
    "centre maps": "maps of centres for {classes}, with sizes, as of CenterNet{points}",
    "centre maps of logarithms": "maps of centres for {classes}, with logarithms of heights and widths, as of "
    "CenterFace{points}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout(OutputReader):
    """Positions and meaning of the numbers in a detector's raw tensors.

    Attributes:
        num_boxes: of each image; 0 where maps tell it.
        num_unread: columns of each box, or points, that mean something else and are not read.
        first_class: column of the first class, where boxes and classes share a tensor.
        has_object: whether the column before the classes is the score of an object.
        size: (height, width) of the input.
        strides: of the maps, in pixels.
        probabilities: whether class values are probabilities already; else logits.
        relative: whether boxes are shares of the input's sides; else pixels.
        as_corners: whether boxes are corners; else centre, width and height.
        rows_first: whether y comes before x, and height before width.
        anchors_last: whether the last axis lists the boxes; else the second.
        order: of the tensors: those of classes, boxes and offsets, by place in the flattened output.
        family: networks that always use this layout, by name; empty where several differ in how they take pictures.
    """

    background: Background = "none"
    num_boxes: int = 0
    num_unread: int = 0
    first_class: int = 0
    has_object: bool = False
    size: tuple[int, int] = (0, 0)
    strides: tuple[int, ...] = ()
    probabilities: bool = False
    relative: bool = False
    as_corners: bool = False
    rows_first: bool = False
    anchors_last: bool = False
    order: tuple[int, ...] = ()
    family: str = ""

    def __post_init__(self) -> None:
        if self.name not in _WORDS or self.num_classes < 1 or max(self.num_classes, *self.size) > _LARGEST:
            raise ValueError(self.name)

    @property
    def usual_input(self) -> UsualInput | None:
        """How networks with such heads take pictures, by their authors' code."""
        return _USUAL_INPUTS.get(self.family)

    @property
    def is_anchored(self) -> bool:
        """Whether boxes are told beside anchors."""
        return self.name.startswith("anchored maps")

    @property
    def words(self) -> str:
        """The layout, as part of a sentence."""
        classes = plural(self.num_classes, "class", "classes")
        if self.background != "none":
            classes = f"a softmax of {classes}, the {self.background} the background"
        form = "corners" if self.as_corners else "centre, width and height"
        form += ", y before x," if self.rows_first else ""
        return _WORDS[self.name].format(
            boxes=self.num_boxes,
            form=f"{form} in {'shares of a side' if self.relative else 'pixels'}",
            classes=classes,
            score=" and an object's score" if self.has_object else "",
            unread=f"; {plural(self.num_unread, 'further column')} of each box not read" if self.num_unread else "",
            points="; further maps are not read" if self.num_unread else "",
            maps=f"maps of strides {', '.join(map(str, self.strides))}",
        )

    def __call__(self, model_output: object) -> dict[str, Tensor]:
        """Return ``rows``, (N, R, 6 + K)."""
        boxes, objects, classes = self._columns(tables_in(model_output))
        if self.probabilities and self.background != "none":
            classes = classes.clamp_min(_NEAR_ZERO).log()
        elif self.probabilities:
            classes = classes.logit(_NEAR_ZERO)
            objects = objects if objects is None else objects.logit(_NEAR_ZERO)
        kind = RowKind.SIGMOID if objects is None else RowKind.OBJECT_TIMES_CLASS
        if self.background != "none":
            kind = RowKind.SOFTMAX_LAST if self.background == "last" else RowKind.SOFTMAX
        boxes = self._corners(boxes)
        return {"rows": assembled(boxes, kind, logits=classes, objects=objects, num_classes=self.num_classes)}

    def _columns(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return what tells the boxes, (N, A, ·), the objects, (N, A), and the classes, (N, A, K)."""
        tables = [self._table(tensors[place]) for place in self.order or range(1)]
        if self.name.startswith("centre maps"):
            return torch.cat(tables[1:], dim=2), None, tables[0]
        if self.name in ("softmax pair", "sigmoid pair", "distances by stride"):
            half = len(tables) // 2
            return torch.cat(tables[half:], dim=1), None, torch.cat(tables[:half], dim=1)
        table = torch.cat(tables, dim=1)
        first = self.first_class or table.shape[2] - self.num_classes
        has_object = self.has_object or self.is_anchored
        classes = table[..., first : first + self.num_classes]
        boxes = table[..., : DISTANCES if "distributions" in self.name else 4]
        return boxes, table[..., first - 1] if has_object else None, classes

    def _table(self, values: Tensor) -> Tensor:
        """Return one tensor as (N, A, C)."""
        if values.ndim == 3:
            return values.transpose(1, 2) if self.anchors_last else values
        if self.is_anchored and values.ndim == 4:
            images, _, height, width = values.shape
            values = values.reshape(images, len(_ANCHORS[0]), -1, height, width).permute(0, 1, 3, 4, 2)
        return values.flatten(1, 3) if values.ndim == 5 else values.flatten(2).transpose(1, 2)

    def _corners(self, values: Tensor) -> Tensor:
        """Return (left, top, right, bottom) in pixels.

        Sources: Li et al. (2020), Generalized Focal Loss, equation 6; Zhou et al. (2019), Objects as Points, section 4.
        """
        if not self.strides:
            height, width = self.size
            values = values[..., [1, 0, 3, 2]] if self.rows_first else values
            boxes = values if self.as_corners else _of_centres(values[..., :2], values[..., 2:])
            return boxes * boxes.new_tensor([width, height, width, height]) if self.relative else boxes
        copies = len(_ANCHORS[0]) if self.is_anchored else 1
        places, sides = (each.to(values) for each in cells(self.size, self.strides, copies))
        first, last = values[..., :2], values[..., 2:]
        if self.name in ("distributions", "maps of distributions", "distances by stride"):
            shares = values.reshape(*values.shape[:2], 4, -1).softmax(dim=-1)
            distances = (shares * torch.arange(shares.shape[-1]).to(values)).sum(dim=-1)
            places = places + 0.5
            return torch.cat([places - distances[..., :2], places + distances[..., 2:]], dim=-1) * sides
        if self.is_anchored:
            counts = [num_cells(self.size, (stride,)) for stride in self.strides]
            anchors = [torch.tensor(each).repeat_interleave(n, 0) for each, n in zip(_ANCHORS, counts, strict=True)]
            whole = torch.cat(anchors).to(values)
            if self.name == "anchored maps":
                return _of_centres((2 * first.sigmoid() - 0.5 + places) * sides, (2 * last.sigmoid()) ** 2 * whole)
            return _of_centres((first.sigmoid() + places) * sides, last.exp() * whole)
        if self.name == "grid":
            return _of_centres((first + places) * sides, last.exp() * sides)
        if self.name == "centre maps of logarithms":  # rows before columns, and from the middle of a cell
            first, last = first.flip(2).exp(), last.flip(2) + 0.5
        return _of_centres((places + last if last.shape[2] else places.expand_as(first)) * sides, first * sides)


def _of_centres(centre: Tensor, sides: Tensor) -> Tensor:
    return torch.cat([centre - sides / 2, centre + sides / 2], dim=-1)


def tables_in(raw: object) -> list[Tensor]:
    """Return all tensors of nested tuples, lists and dictionaries, in order; boxes as YOLOv4's as (N, A, 4)."""
    return [each.squeeze(2) if each.ndim == 4 and each.shape[2:] == (1, 4) else each for each in tensors_in(raw)]


def cells(size: tuple[int, int], strides: Sequence[int], copies: int = 1) -> tuple[Tensor, Tensor]:
    """Return the upper left corner of each cell in cells, (A, 2), and its stride, (A, 1), ``copies`` of each level."""
    places, sides = [], []
    for stride in strides:
        y, x = torch.meshgrid(*(torch.arange(-(-side // stride)) for side in size), indexing="ij")
        places.append(torch.stack([x, y], dim=-1).reshape(-1, 2).repeat(copies, 1))
        sides.append(torch.full((len(places[-1]), 1), stride))
    return torch.cat(places), torch.cat(sides)


def num_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """Return the number of cells of all maps of an input of ``size`` (height, width)."""
    return sum(math.prod(-(-side // stride) for side in size) for stride in strides)
