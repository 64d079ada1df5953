"""Layouts of outputs with an axis of anchors or cells: one tensor, classes with boxes, or both for each stride."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from senseapp.core.errors import UnsupportedModel
from senseapp.tasks.detection.heads import decoding, values
from senseapp.tasks.detection.heads.layout import (
    BINS,
    DISTANCES,
    STRIDES,
    HeadLayout,
    in_pixels,
    num_cells,
    square_of,
    strides_of,
)

if TYPE_CHECKING:
    from torch import Tensor

_MORE_STRIDES = (*STRIDES, 64)  # with the fourth map of NanoDet-Plus
_SOME_BINS = (8, BINS)  # of a distance, in NanoDet and in YOLOv8
_MOST_FINAL = 1000  # rows after suppression: files keep 100 to 1,000; grids have thousands of cells
_ANCHORS = 3  # of each cell, in YOLOv3 to v7
_YOLO = "YOLOv5 to v11"


def of_one_tensor(
    tensor: Tensor, size: tuple[int, int] | None, num_classes: int = 0, *, every: bool = False
) -> Iterator[HeadLayout]:
    """Yield the layouts of one tensor, (N, C, A) or (N, A, C), that its values do not contradict."""
    for anchors_last in _orientations(tensor, size):
        rows = tensor.transpose(1, 2) if anchors_last else tensor  # (N, A, C)
        count, width = rows.shape[1], rows.shape[2]
        if width < 5:
            continue
        square = size or square_of(count, STRIDES)
        strides = strides_of(count, square)
        if width in (6, 7) and count <= _MOST_FINAL and not strides and values.is_final(rows):
            raise UnsupportedModel(
                f"These are final boxes, {count:,} for each image, after non-maximum suppression: they leave nothing "
                "to rank layers by. Cut the graph before it."
            )
        grid = {"size": square or (0, 0), "strides": strides}
        are_scores = values.is_probability(rows[..., 4:DISTANCES])
        if strides and width > DISTANCES and values.has_negatives(rows[..., :4]) and (rows.is_meta or not are_scores):
            yield _distributions(rows, grid, anchors_last=anchors_last)
        elif strides and not anchors_last and width > 5 and values.are_shifts(rows[..., :4]):
            yield _yolox(rows, grid)
        else:
            yield from _decoded(rows, size, num_classes, on_grid=bool(strides), anchors_last=anchors_last, every=every)


def _orientations(tensor: Tensor, size: tuple[int, int] | None) -> list[bool]:
    """Return whether boxes may lie along the last axis, most probable first: that of the cells, or the longer one.

    The shorter one may list boxes too, of as many classes, where its columns hold boxes and probabilities.
    """
    lengths = tensor.shape[1:3]
    counted = [bool(_strides_of_boxes(length, size)) for length in lengths]
    if counted[0] != counted[1]:
        return [counted[1]]
    usual = bool(lengths[0] < lengths[1])
    other = tensor if usual else tensor.transpose(1, 2)
    fits = tensor.is_meta or (values.is_probability(other[..., 4:]) and values.has_sides(other[..., :4]))
    return [usual, not usual] if fits else [usual]


def _strides_of_boxes(count: int, size: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the strides of maps with so many boxes, one or three in each cell."""
    return strides_of(count, size) or (strides_of(count // _ANCHORS, size) if count % _ANCHORS == 0 else ())


def _distributions(rows: Tensor, grid: dict[str, Any], *, anchors_last: bool) -> HeadLayout:
    return HeadLayout(
        name="distributions",
        num_classes=rows.shape[2] - DISTANCES,
        num_boxes=rows.shape[1],
        first_class=DISTANCES,
        probabilities=values.is_probability(rows[..., DISTANCES:]),
        anchors_last=anchors_last,
        family=_YOLO,
        **grid,
    )


def _yolox(rows: Tensor, grid: dict[str, Any]) -> HeadLayout:
    return HeadLayout(
        name="grid",
        num_classes=rows.shape[2] - 5,
        num_boxes=rows.shape[1],
        first_class=5,
        has_object=True,
        probabilities=values.is_probability(rows[..., 4:]),
        family="YOLOX",
        **grid,
    )


def _decoded(
    rows: Tensor, size: tuple[int, int] | None, num_classes: int, *, on_grid: bool, anchors_last: bool, every: bool
) -> Iterator[HeadLayout]:
    """Yield the layouts of boxes followed by scores: of classes alone, of an object and classes, of a softmax."""
    count, width = rows.shape[1], rows.shape[2]
    probabilities, corners = values.is_probability(rows[..., 4:5]), values.are_corners(rows[..., :4])
    rare, scores = values.scores_in(rows[..., 4:])
    if rare > 1:  # else classes that are likely wherever an object is, behind an object's score
        scores = rare
    if num_classes < scores - 1 and num_classes:  # further columns that look like scores
        scores = num_classes + (width - 4 > num_classes and not anchors_last)
    relative = values.is_relative(rows[..., :4])
    by_anchor = not on_grid and bool(_strides_of_boxes(count, size))
    shares = rows[..., 4 : 4 + scores] if probabilities else rows[..., 4 : 4 + scores].sigmoid()
    softmax, usual = values.sums_to_one(shares), values.usual_class(shares)
    if scores < 2 or softmax:
        with_object = [False]
    else:  # YOLOv8 to v11 have no such score, and networks with three boxes in a cell, as YOLOv3 to v7, have one
        family = False if on_grid and anchors_last else True if by_anchor else None
        found = values.is_object(shares[..., 0], shares[..., 1:])
        told = family if found is None else found
        likely = not anchors_last if told is None else told
        with_object = [likely, not likely] if every or told is None else [likely]
    for has_object in with_object:
        yield HeadLayout(
            name="boxes and classes",
            num_classes=scores - has_object,
            num_boxes=count,
            num_unread=width - 4 - scores,
            first_class=4 + has_object,
            has_object=has_object,
            size=size or (0, 0),
            probabilities=probabilities,
            relative=relative,
            as_corners=corners,
            anchors_last=anchors_last,
            background="" if not softmax else "first" if usual == 0 else "last",
            family=_YOLO if (on_grid and anchors_last) or by_anchor else "",
        )


def decode_one(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of a layout of :func:`of_one_tensor`."""
    rows = tensors[0].transpose(1, 2) if layout.anchors_last else tensors[0]
    first, end = layout.first_class, layout.first_class + layout.num_classes
    if layout.background:
        return _softmax_rows(in_pixels(_boxes(rows[..., :4], layout), layout), rows[..., first:end], layout)
    logits = decoding.logits_of(rows[..., first:end], probabilities=layout.probabilities)
    if layout.name == "distributions":
        boxes = decoding.distribution_boxes(rows[..., :first], layout.size, layout.strides)
        return decoding.sigmoid_rows(boxes, logits)
    objects = decoding.logits_of(rows[..., 4], probabilities=layout.probabilities) if layout.has_object else None
    if layout.name == "grid":
        boxes = decoding.grid_boxes(rows[..., :4], layout.size, layout.strides)
    else:
        boxes = _boxes(rows[..., :4], layout)
    return decoding.sigmoid_rows(in_pixels(boxes, layout), logits, objects)


def _boxes(boxes: Tensor, layout: HeadLayout) -> Tensor:
    return boxes if layout.as_corners else decoding.corners(boxes)


def _softmax_rows(boxes: Tensor, classes: Tensor, layout: HeadLayout) -> Tensor:
    logits = decoding.log_shares(classes) if layout.probabilities else classes
    return decoding.softmax_rows(boxes, logits, background_last=layout.background == "last")


def of_several(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> Iterator[HeadLayout]:
    """Yield the layouts of classes (N, A, K) and boxes (N, A, 4), or of both for each stride."""
    boxes = [place for place, each in enumerate(tensors) if each.shape[2] == 4]
    if len(tensors) == 2 and boxes and tensors[0].shape[1] == tensors[1].shape[1]:
        fits = [(not values.sums_to_one(tensors[each]), values.has_sides(tensors[each]), each) for each in boxes]
        for *_, place in sorted(fits, reverse=True):  # four classes look like boxes
            yield from _pairs(tensors[1 - place], tensors[place], (1 - place, place), size)
        return
    levels = _levels(tensors)
    if levels is None:
        return
    classes, distances = levels
    strides = _MORE_STRIDES[: len(classes)]
    count = sum(tensors[place].shape[1] for place in classes)
    square = size or square_of(count, strides)
    if square is None or num_cells(square, strides) != count:
        return
    yield HeadLayout(
        name="distances by stride",
        num_classes=tensors[classes[0]].shape[2],
        size=square,
        strides=strides,
        probabilities=all(values.is_probability(tensors[place]) for place in classes),
        order=(*classes, *distances),
        family="PicoDet" if len(classes) == len(_MORE_STRIDES) and tensors[distances[0]].shape[2] == 4 * 8 else "",
    )


def _pairs(
    classes: Tensor, boxes: Tensor, order: tuple[int, int], size: tuple[int, int] | None
) -> Iterator[HeadLayout]:
    """Yield the layouts of one tensor of classes and one of boxes: with a background among the classes, and without."""
    number, usual = classes.shape[2], values.usual_class(classes)
    probabilities = values.is_probability(classes)
    backgrounds: tuple[Literal["", "first", "last"], ...]
    if values.sums_to_one(classes):
        backgrounds = ("first" if usual == 0 else "last",)
    elif (probabilities and not classes.is_meta) or values.is_quiet(classes) or 0 < usual < number - 1 or number == 1:
        backgrounds = ("",)
    else:
        backgrounds = ("", "first", "last") if usual < 0 else ("first" if usual == 0 else "last",)
    for background in backgrounds:
        yield HeadLayout(
            name="softmax pair" if background else "sigmoid pair",
            num_classes=number,
            num_boxes=boxes.shape[1],
            size=size or (0, 0),
            probabilities=probabilities,
            relative=values.is_relative(boxes),
            as_corners=values.are_corners(boxes),
            background=background,
            order=order,
        )


def decode_pair(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of one tensor of classes and one of boxes."""
    classes, boxes = (tensors[place] for place in layout.order)
    boxes = in_pixels(_boxes(boxes, layout), layout)
    if layout.background:
        return _softmax_rows(boxes, classes, layout)
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
