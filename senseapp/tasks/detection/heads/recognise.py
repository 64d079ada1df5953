"""Layouts of a detector's raw tensors that neither shapes nor values contradict."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.core.registry import grouped
from senseapp.tasks.class_numbers import Background
from senseapp.tasks.detection.heads import values
from senseapp.tasks.detection.heads.layout import DISTANCES, STRIDES, YOLO, HeadLayout, num_cells

Size: TypeAlias = tuple[int, int]
_MORE_STRIDES = (*STRIDES, 64)  # with the fourth map of NanoDet-Plus
_OTHER_STRIDES = (_MORE_STRIDES, (4, 8, 16, 32), (8, 16), (16, 32))  # of larger and smaller members of the family
_SOME_DISTANCES = (32, DISTANCES)  # numbers of a box, in NanoDet and in YOLOv8
_MOST_FINAL = 1000  # rows after suppression: files keep 100 to 1,000; grids have thousands of cells
_ANCHORS = 3  # of each cell, in YOLOv3 to v7


def of_one_tensor(tensor: Tensor, size: Size, num_classes: int = 0, *, every: bool = False) -> Iterator[HeadLayout]:
    """Yield the layouts of one tensor, (N, C, A) or (N, A, C), that its values do not contradict."""
    for anchors_last in _orientations(tensor, size):
        rows = tensor.transpose(1, 2) if anchors_last else tensor  # (N, A, C)
        count, width = rows.shape[1], rows.shape[2]
        if width < 5:
            continue
        strides = _strides_of(count, size)
        if width in (6, 7) and count <= _MOST_FINAL and not strides and values.is_final(rows):
            raise UnsupportedModel(
                f"These are final boxes, {count:,} for each image, after non-maximum suppression: they leave nothing "
                "to rank layers by. Cut the graph before it."
            )
        told: dict[str, Any] = {"num_boxes": count, "size": size, "anchors_last": anchors_last}
        are_scores = values.is_probability(rows[..., 4:DISTANCES])
        if strides and width > DISTANCES and (rows.is_meta or (bool(rows[..., :4].min() < 0) and not are_scores)):
            shares = values.is_probability(rows[..., DISTANCES:])
            told |= {"first_class": DISTANCES, "probabilities": shares, "strides": strides, "family": YOLO}
            yield HeadLayout(name="distributions", num_classes=width - DISTANCES, **told)
        elif strides and not anchors_last and width > 5 and values.are_shifts(rows[..., :4]):
            shares = values.is_probability(rows[..., 4:])
            told |= {"first_class": 5, "has_object": True, "probabilities": shares, "strides": strides}
            yield HeadLayout(name="grid", num_classes=width - 5, family="YOLOX", **told)
        else:
            yield from _decoded(rows, told, num_classes, on_grid=bool(strides), every=every)


def _orientations(tensor: Tensor, size: Size) -> list[bool]:
    """Return whether boxes may lie along the last axis, most probable first: that of the cells, else the longer one."""
    lengths = tensor.shape[1:3]
    counted = [bool(_strides_of_boxes(length, size)) for length in lengths]
    if counted[0] != counted[1]:
        return [counted[1]]
    usual = bool(lengths[0] < lengths[1])
    other = tensor if usual else tensor.transpose(1, 2)
    fits = tensor.is_meta or (values.is_probability(other[..., 4:]) and values.has_sides(other[..., :4]))
    return [usual, not usual] if fits else [usual]


def _strides_of(count: int, size: Size) -> tuple[int, ...]:
    """Return the strides of maps that have ``count`` cells together; empty where there are none."""
    return next((each for each in (STRIDES, *_OTHER_STRIDES) if num_cells(size, each) == count), ())


def _strides_of_boxes(count: int, size: Size) -> tuple[int, ...]:
    """Return the strides of maps with so many boxes, one or three in each cell."""
    return _strides_of(count, size) or (() if count % _ANCHORS else _strides_of(count // _ANCHORS, size))


def _decoded(
    rows: Tensor, told: dict[str, Any], num_classes: int, *, on_grid: bool, every: bool
) -> Iterator[HeadLayout]:
    """Yield the layouts of boxes followed by scores: of classes alone, of an object and classes, of a softmax."""
    anchors_last, first = told["anchors_last"], 4 + values.unread_before(rows[..., 4:])
    columns = rows[..., first:]
    probabilities = values.is_probability(columns[..., :1])
    rare, scores = values.scores_in(columns)
    if rare > 1:  # else classes that are likely wherever an object is, behind an object's score
        scores = rare
    if num_classes < scores - 1 and num_classes:  # further columns that look like scores
        scores = num_classes + (columns.shape[2] > num_classes and not anchors_last)
    by_anchor = not on_grid and bool(_strides_of_boxes(rows.shape[1], told["size"]))
    shares = columns[..., :scores] if probabilities else columns[..., :scores].sigmoid()
    softmax = values.sums_to_one(shares)
    background: Background = "none" if not softmax else "first" if values.usual_class(shares) == 0 else "last"
    if scores < 2 or softmax:
        with_object = [False]
    else:  # YOLOv8 to v11 have no such score, and networks with three boxes in a cell, as YOLOv3 to v7, have one
        family = False if on_grid and anchors_last else True if by_anchor else None
        found = values.is_object(shares[..., 0], shares[..., 1:])
        likely = next((each for each in (found, family) if each is not None), None)
        with_object = [likely, not likely] if likely is not None else [not anchors_last, anchors_last]
        with_object = with_object if every or likely is None else with_object[:1]
    for has_object, form in product(with_object, _forms(rows[..., :4], every=every)):
        yield HeadLayout(
            name="boxes and classes",
            num_classes=scores - has_object,
            num_unread=rows.shape[2] - 4 - scores,
            first_class=first + has_object,
            has_object=has_object,
            probabilities=probabilities,
            background=background,
            family=YOLO if (on_grid and anchors_last) or by_anchor else "",
            **told,
            **form,
        )


def _forms(boxes: Tensor, *, every: bool) -> list[dict[str, Any]]:
    """Return the forms that boxes (N, A, 4) may have; none where they have no sides, as shifts from anchors."""
    if not values.has_sides(boxes):
        return []
    corners = values.are_corners(boxes)
    rows_first = values.rows_come_first(boxes, corners=corners)
    told = {"relative": values.is_relative(boxes), "as_corners": corners, "rows_first": bool(rows_first)}
    return [told, *([{**told, "rows_first": True}] if every and rows_first is None else [])]


def of_several(tensors: Sequence[Tensor], size: Size, *, every: bool = False) -> Iterator[HeadLayout]:
    """Yield the layouts of classes (N, A, K) and boxes (N, A, 4), or of both for each stride."""
    boxes = [place for place, each in enumerate(tensors) if each.shape[2] == 4]
    if len(tensors) == 2 and boxes and tensors[0].shape[1] == tensors[1].shape[1]:
        fits = {each: (not values.sums_to_one(tensors[each]), values.has_sides(tensors[each])) for each in boxes}
        first = max(boxes, key=lambda each: (fits[each], each))
        alike = [each for each in boxes if every and each != first and fits[each] == fits[first]]
        for place in (first, *alike):  # shares of four classes look like boxes
            yield from _pairs(tensors[1 - place], tensors[place], (1 - place, place), size, every=every)
        return
    classes, distances = _levels(tensors)
    strides = _MORE_STRIDES[: len(classes)]
    if not classes or num_cells(size, strides) != sum(tensors[place].shape[1] for place in classes):
        return
    yield HeadLayout(
        name="distances by stride",
        num_classes=tensors[classes[0]].shape[2],
        size=size,
        strides=strides,
        probabilities=all(values.is_probability(tensors[place]) for place in classes),
        order=(*classes, *distances),
        family="PicoDet" if len(classes) == len(_MORE_STRIDES) and tensors[distances[0]].shape[2] == 4 * 8 else "",
    )


def _pairs(classes: Tensor, boxes: Tensor, order: tuple[int, int], size: Size, *, every: bool) -> Iterator[HeadLayout]:
    """Yield the layouts of one tensor of classes and one of boxes: with a background among the classes, and without."""
    number, usual = classes.shape[2], values.usual_class(classes)
    probabilities = values.is_probability(classes)
    backgrounds: tuple[Background, ...]
    if values.sums_to_one(classes):
        backgrounds = ("first" if usual == 0 else "last",)
    elif (probabilities and not classes.is_meta) or values.is_quiet(classes) or 0 < usual < number - 1 or number == 1:
        backgrounds = ("none",)
    else:
        backgrounds = ("none", "first", "last") if usual < 0 else ("first" if usual == 0 else "last",)
    for background, form in product(backgrounds, _forms(boxes, every=every)):
        yield HeadLayout(
            name="sigmoid pair" if background == "none" else "softmax pair",
            num_classes=number,
            num_boxes=boxes.shape[1],
            size=size,
            probabilities=probabilities,
            background=background,
            order=order,
            **form,
        )


def _levels(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Return the places of classes and of distances by level, the largest map first; none where they are not such."""
    largest_first = sorted(range(len(tensors)), key=lambda place: -tensors[place].shape[1])
    by_width = grouped((tensors[place].shape[2], place) for place in largest_first)
    wide = [width for width in by_width if width in _SOME_DISTANCES]
    if len(tensors) not in (6, 8) or len(by_width) != 2 or not wide:
        return [], []
    distances = by_width.pop(max(wide, key=lambda each: min(by_width[each])))  # of two that fit, the later one
    (classes,) = by_width.values()
    lengths = [[tensors[place].shape[1] for place in places] for places in (classes, distances)]
    return (classes, distances) if lengths[0] == lengths[1] else ([], [])


def of_maps(tensors: Sequence[Tensor], size: Size, *, every: bool = False) -> Iterator[HeadLayout]:
    """Yield the layouts of maps (N, C, H, W), or of YOLOv5 (N, a, H, W, C), whose look is also that of YOLOv3."""
    order = tuple(sorted(range(len(tensors)), key=lambda place: -math.prod(tensors[place].shape[2:4])))
    maps = [tensors[place] for place in order]
    if maps[0].ndim == 4 and len({tuple(each.shape[2:]) for each in maps}) == 1 and len(maps) in (2, 3, 4):
        yield from _centre_maps(tensors, size)
    sides = [tuple(each.shape[2:4]) for each in maps]
    widths = {each.shape[1] if each.ndim == 4 else _ANCHORS * each.shape[4] for each in maps}
    wanted = [(-(-size[0] // stride), -(-size[1] // stride)) for stride in STRIDES]
    if len(maps) in (6, 9) and list(dict.fromkeys(sides)) == wanted and maps[0].ndim == 4:
        yield from _parted_maps(tensors, wanted, size)
    if sides != wanted or len(widths) > 1:
        return
    width = widths.pop()
    told: dict[str, Any] = {"size": size, "strides": STRIDES, "order": order, "family": YOLO}
    are_anchored = (  # each third has an object's logit, which is low in most cells
        maps[0].ndim == 5
        or width <= DISTANCES
        or all(each.is_meta or float(each[:, 4 :: width // _ANCHORS].mean()) < -2.0 for each in maps)
    )
    if width % _ANCHORS == 0 and width // _ANCHORS > 5 and are_anchored:
        for name in ("anchored maps", *(["anchored maps of logarithms"] if every else [])):
            yield HeadLayout(name=name, num_classes=width // _ANCHORS - 5, **told)
    elif width > DISTANCES and maps[0].ndim == 4:
        yield HeadLayout(name="maps of distributions", num_classes=width - DISTANCES, **told)


def _parted_maps(tensors: Sequence[Tensor], sides: Sequence[Size], size: Size) -> Iterator[HeadLayout]:
    """Yield the layout of a map of distances and one of classes for each stride, as RKNN's exports of YOLOv8 have."""
    levels = [[place for place, each in enumerate(tensors) if tuple(each.shape[2:]) == level] for level in sides]
    distances = [place for level in levels for place in level if tensors[place].shape[1] == DISTANCES][: len(sides)]
    classes = [next((place for place in level if place not in distances), -1) for level in levels]  # then their sums
    widths = {tensors[place].shape[1] for place in classes}
    if len(distances) == len(sides) and min(classes) >= 0 and len(widths) == 1:
        yield HeadLayout(
            name="distances by stride",
            num_classes=widths.pop(),
            size=size,
            strides=STRIDES,
            probabilities=all(values.is_probability(tensors[place]) for place in classes),
            order=(*classes, *distances),
            family=YOLO,
        )


def _centre_maps(tensors: Sequence[Tensor], size: Size) -> Iterator[HeadLayout]:
    pairs = [place for place, each in enumerate(tensors) if each.shape[1] == 2]
    others = [place for place in range(len(tensors)) if place not in pairs]
    if not pairs or len(pairs) > 2 or not others:
        return
    heat, *points = sorted(others, key=lambda each: (not values.is_probability(tensors[each]), tensors[each].shape[1]))
    if any(tensors[place].shape[1] % 2 or len(pairs) < 2 for place in points) or len(points) > 1:
        return
    means = {place: 0.0 if tensors[place].is_meta else float(tensors[place].float().abs().mean()) for place in pairs}
    sizes = max(pairs, key=lambda place: means[place])
    stride = -(-size[0] // tensors[heat].shape[2])
    most = math.log(4 * max(size) / stride)  # logarithms of cells that a few times the image has
    logarithms = bool(points) and not tensors[sizes].is_meta and float(tensors[sizes].float().max()) <= most
    yield HeadLayout(
        name="centre maps of logarithms" if logarithms else "centre maps",
        num_classes=tensors[heat].shape[1],
        size=size,
        strides=(stride,),
        probabilities=values.is_probability(tensors[heat]),
        order=(heat, sizes, *(place for place in pairs if place != sizes)),
        num_unread=len(points),
        family="CenterFace" if logarithms else "",
    )
