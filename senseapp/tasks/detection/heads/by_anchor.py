"""Layouts of outputs with an axis of anchors or cells: one tensor, classes with boxes, or both for each stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from senseapp.core.errors import UnsupportedModel
from senseapp.core.texts import plural
from senseapp.tasks.detection.heads import decoding
from senseapp.tasks.detection.heads.layout import BINS, DISTANCES, STRIDES, HeadLayout, in_pixels, num_cells, square_of
from senseapp.tasks.detection.heads.values import (
    has_negatives,
    has_sides,
    is_final,
    is_mostly,
    is_probability,
    is_relative,
    is_small,
    sums_to_one,
)

if TYPE_CHECKING:
    from torch import Tensor

_MORE_STRIDES = (*STRIDES, 64)  # with the fourth map of NanoDet-Plus
_SOME_BINS = (8, BINS)  # of a distance, in NanoDet and in YOLOv8
_MOST_FINAL = 1000  # rows after suppression: files keep 100 to 1,000; grids have thousands of cells


def one_tensor(values: Tensor, size: tuple[int, int] | None) -> HeadLayout | None:
    """Return the layout of one tensor, (N, C, A) or (N, A, C); None for too few channels."""
    anchors_last = values.shape[1] < values.shape[2]
    rows = values.transpose(1, 2) if anchors_last else values  # (N, A, C)
    count, width = rows.shape[1], rows.shape[2]
    if width < 5:
        return None
    if width in (6, 7) and count <= _MOST_FINAL and is_final(rows):
        raise UnsupportedModel(
            f"These are final boxes, {count:,} for each image, after non-maximum suppression: they leave nothing to "
            "rank layers by. Cut the graph before it."
        )
    square = size or square_of(count, STRIDES)
    if (
        width > DISTANCES
        and square is not None
        and num_cells(square, STRIDES) == count
        and has_negatives(rows[..., :4])
    ):
        classes = width - DISTANCES
        return HeadLayout(
            name="distributions",
            num_classes=classes,
            size=square,
            strides=STRIDES,
            probabilities=is_probability(rows[..., DISTANCES:]),
            sentence=f"{count:,} cells of strides 8, 16 and 32: distances in {BINS} steps (DFL) and "
            f"{classes} classes, as of YOLOv8.",
            anchors_last=anchors_last,
        )
    with_object = not anchors_last and width >= 6
    first = 5 if with_object else 4
    classes = width - first
    probabilities = is_probability(rows[..., 4:])
    on_grid = with_object and square is not None and num_cells(square, STRIDES) == count and is_small(rows[..., :2])
    score = " and an object's score" if with_object else ""
    about = f"{count:,} boxes with {plural(classes, 'class', 'classes')}{score}"
    where = "in cells of strides 8, 16 and 32, as of YOLOX" if on_grid else "centre, width and height"
    return HeadLayout(
        name="grid" if on_grid else "boxes and classes",
        num_classes=classes,
        size=square if on_grid and square else size or (0, 0),
        strides=STRIDES if on_grid else (),
        probabilities=probabilities,
        relative=not on_grid and is_probability(rows[..., :4]),
        order=(first,),
        sentence=f"{about}, {where}.",
        anchors_last=anchors_last,
    )


def decode_one(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of a layout of :func:`one_tensor`."""
    values = tensors[0].transpose(1, 2) if layout.anchors_last else tensors[0]
    first = DISTANCES if layout.name == "distributions" else layout.order[0]
    logits = decoding.logits_of(values[..., first:], probabilities=layout.probabilities)
    if layout.name == "distributions":
        return decoding.sigmoid_rows(
            decoding.distribution_boxes(values[..., :first], layout.size, layout.strides), logits
        )
    objects = decoding.logits_of(values[..., 4], probabilities=layout.probabilities) if first == 5 else None
    if layout.name == "grid":
        boxes = decoding.grid_boxes(values[..., :4], layout.size, layout.strides)
    else:
        boxes = decoding.corners(values[..., :4])
    return decoding.sigmoid_rows(in_pixels(boxes, layout), logits, objects)


def classes_and_boxes(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> HeadLayout | None:
    """Return the layout of classes (N, A, K) and boxes (N, A, 4), or of both for each stride; None for others."""
    boxes = [place for place, each in enumerate(tensors) if each.shape[2] == 4]
    if len(tensors) == 2 and boxes and tensors[0].shape[1] == tensors[1].shape[1]:
        place = max(boxes, key=lambda each: (not sums_to_one(tensors[each]), has_sides(tensors[each]), each))
        return _one_pair(tensors[1 - place], tensors[place], (1 - place, place), size)
    levels = _levels(tensors)
    if levels is None:
        return None
    classes, distances = levels
    strides = _MORE_STRIDES[: len(classes)]
    count = sum(tensors[place].shape[1] for place in classes)
    square = size or square_of(count, strides)
    if square is None or num_cells(square, strides) != count:
        return None
    number, bins = tensors[classes[0]].shape[2], tensors[distances[0]].shape[2] // 4
    return HeadLayout(
        name="distances by stride",
        num_classes=number,
        size=square,
        strides=strides,
        probabilities=all(is_probability(tensors[place]) for place in classes),
        order=(*classes, *distances),
        sentence=f"{len(classes)} maps of strides {', '.join(map(str, strides))}: {number} classes and distances in "
        f"{bins} steps, as of PicoDet and NanoDet.",
    )


def _one_pair(
    classes: Tensor, boxes: Tensor, order: tuple[int, int], size: tuple[int, int] | None
) -> HeadLayout | None:
    number = classes.shape[2]
    shares = sums_to_one(classes)
    likeliest = classes.mean(dim=(0, 1)).argmax()
    background = int(likeliest) in (0, number - 1) and number > 1
    softmax = shares or (not is_probability(classes) and background and is_mostly(classes, int(likeliest)))
    as_corners = bool((boxes[..., 2:] >= boxes[..., :2]).float().mean() > 0.99)
    place = "the first" if int(likeliest) == 0 else "the last"
    how = f"a softmax of {number} classes, {place} the background" if softmax else f"{number} classes"
    form = "corners" if as_corners else "centre, width and height"
    return HeadLayout(
        name="softmax pair" if softmax else "sigmoid pair",
        num_classes=number,
        size=size or (0, 0),
        probabilities=is_probability(classes),
        relative=is_relative(boxes),
        as_corners=as_corners,
        background_last=int(likeliest) != 0,
        order=order,
        sentence=f"{boxes.shape[1]:,} boxes ({form}) with {how}.",
    )


def decode_pair(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of one tensor of classes and one of boxes."""
    classes, boxes = (tensors[place] for place in layout.order)
    boxes = in_pixels(boxes if layout.as_corners else decoding.corners(boxes), layout)
    if layout.name == "softmax pair":
        logits = decoding.log_shares(classes) if layout.probabilities else classes
        return decoding.softmax_rows(boxes, logits, background_last=layout.background_last)
    return decoding.sigmoid_rows(boxes, decoding.logits_of(classes, probabilities=layout.probabilities))


def _levels(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]] | None:
    """Return the places of classes and of distances by level, the largest map first; None where there are none."""
    number = len(tensors) // 2
    by_width: dict[int, list[int]] = {}
    for place, each in enumerate(tensors):
        by_width.setdefault(each.shape[2], []).append(place)
    if len(tensors) % 2 or number not in (3, 4) or len(by_width) != 2:
        return None
    of_distances = [width for width in by_width if width % 4 == 0 and width // 4 in _SOME_BINS]
    if not of_distances:
        return None
    width = max(of_distances, key=lambda each: by_width[each][0])  # of two that fit, the one that comes later
    distances = by_width.pop(width)
    (classes,) = by_width.values()
    pair = [sorted(places, key=lambda place: -tensors[place].shape[1]) for places in (classes, distances)]
    alike = all(tensors[one].shape[1] == tensors[other].shape[1] for one, other in zip(*pair, strict=False))
    return (pair[0], pair[1]) if alike and len(pair[0]) == len(pair[1]) else None


def decode_levels(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of classes and distances for each stride."""
    import torch

    number = len(layout.strides)
    classes = torch.cat([tensors[place] for place in layout.order[:number]], dim=1)
    distances = torch.cat([tensors[place] for place in layout.order[number:]], dim=1)
    boxes = decoding.distribution_boxes(distances, layout.size, layout.strides)
    return decoding.sigmoid_rows(boxes, decoding.logits_of(classes, probabilities=layout.probabilities))
