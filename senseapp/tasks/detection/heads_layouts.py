"""Layouts of detectors' raw outputs: recognised from shapes and ranges of values, and decoded by what was recognised.

A layout is recognised once, from the output of the uncompressed network for some images, and then decodes every output
of that network: a compressed network's values may lie in other ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from senseapp.core.errors import UnsupportedModel
from senseapp.core.texts import plural
from senseapp.tasks.detection import heads_decoding as decoding

if TYPE_CHECKING:
    from torch import Tensor

_STRIDES = (8, 16, 32)  # of YOLO's three maps
_MORE_STRIDES = (8, 16, 32, 64)  # with the fourth map of NanoDet-Plus
_BINS = 16  # of a distance, in YOLOv8 to v11
_SOME_BINS = (8, 16)  # of a distance, in NanoDet and in YOLOv8
_MOST_FINAL = 1000  # rows after suppression: files keep 100 to 1,000; grids have thousands of cells
_SLACK = 1e-3  # of probabilities that were rounded
_NEARLY_ALL = 0.99  # share of rows: rounding may swap the corners of a box without area
_LARGEST_SHARE = 4  # of an object, of the longer side of the image


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """How raw tensors become rows.

    Attributes:
        name: of the layout, as :func:`decode` knows it.
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


def recognise(tensors: Sequence[Tensor], size: tuple[int, int] | None = None) -> HeadLayout:
    """Return the layout of the raw tensors of a detector, images first, for inputs of ``size`` (height, width).

    Raises:
        UnsupportedModel: none of the known ones fits; the message says what came.
    """
    shapes = [tuple(each.shape) for each in tensors]
    if len(tensors) == 1 and tensors[0].ndim == 3:
        found = _one_tensor(tensors[0], size)
    elif all(each.ndim == 3 for each in tensors):
        found = _classes_and_boxes(tensors, size)
    elif all(each.ndim in (4, 5) for each in tensors):
        found = _maps(tensors, size)
    else:
        found = None
    if found is None:
        listed = ", ".join(str(shape) for shape in shapes[:8]) or "nothing"
        raise UnsupportedModel(
            f"The layout of these outputs is none that is known for detectors: {listed}. Known are heads of YOLOv5 to "
            "v11 and YOLOX, classes with boxes as of SSD and DETR, distances by stride as of PicoDet and NanoDet, "
            "centre maps, and torchvision's detectors. Cut the graph before non-maximum suppression."
        )
    return found


def decode(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return rows, (N, R, 6 + K), of the raw tensors of a network whose layout was recognised."""
    return _DECODERS[layout.name](tensors, layout)


# ---- one tensor, (N, C, A) or (N, A, C)


def _one_tensor(values: Tensor, size: tuple[int, int] | None) -> HeadLayout | None:
    anchors_last = values.shape[1] < values.shape[2]
    rows = values.transpose(1, 2) if anchors_last else values  # (N, A, C)
    count, width = rows.shape[1], rows.shape[2]
    if width < 5:
        return None
    if width in (6, 7) and count <= _MOST_FINAL and _is_final(rows):
        raise UnsupportedModel(
            f"These are final boxes, {count:,} for each image, after non-maximum suppression: they leave nothing to "
            "rank layers by. Cut the graph before it."
        )
    square = size or _square_of(count, _STRIDES)
    if width > 4 * _BINS and square is not None and _num_cells(square, _STRIDES) == count and _is_any(rows[..., :4]):
        classes = width - 4 * _BINS
        return HeadLayout(
            name="distributions",
            num_classes=classes,
            size=square,
            strides=_STRIDES,
            probabilities=_is_probability(rows[..., 4 * _BINS :]),
            sentence=f"{count:,} cells of strides 8, 16 and 32: distances in {_BINS} steps (DFL) and "
            f"{classes} classes, as of YOLOv8.",
            anchors_last=anchors_last,
        )
    with_object = not anchors_last and width >= 6
    first = 5 if with_object else 4
    classes = width - first
    probabilities = _is_probability(rows[..., 4:])
    on_grid = with_object and square is not None and _num_cells(square, _STRIDES) == count and _is_small(rows[..., :2])
    score = " and an object's score" if with_object else ""
    about = f"{count:,} boxes with {plural(classes, 'class', 'classes')}{score}"
    where = "in cells of strides 8, 16 and 32, as of YOLOX" if on_grid else "centre, width and height"
    return HeadLayout(
        name="grid" if on_grid else "boxes and classes",
        num_classes=classes,
        size=square if on_grid and square else size or (0, 0),
        strides=_STRIDES if on_grid else (),
        probabilities=probabilities,
        relative=not on_grid and _is_probability(rows[..., :4]),
        order=(first,),
        sentence=f"{about}, {where}.",
        anchors_last=anchors_last,
    )


def _decode_one(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    values = tensors[0].transpose(1, 2) if layout.anchors_last else tensors[0]
    first = 4 * _BINS if layout.name == "distributions" else layout.order[0]
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
    return decoding.sigmoid_rows(_in_pixels(boxes, layout), logits, objects)


# ---- classes (N, A, K) and boxes (N, A, 4), or both for each stride


def _classes_and_boxes(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> HeadLayout | None:
    boxes = [place for place, each in enumerate(tensors) if each.shape[2] == 4]
    if len(tensors) == 2 and boxes and tensors[0].shape[1] == tensors[1].shape[1]:
        place = max(boxes, key=lambda each: (not _sums_to_one(tensors[each]), _has_sides(tensors[each]), each))
        return _one_pair(tensors[1 - place], tensors[place], (1 - place, place), size)
    levels = _levels(tensors)
    if levels is None:
        return None
    classes, distances = levels
    strides = _MORE_STRIDES[: len(classes)]
    count = sum(tensors[place].shape[1] for place in classes)
    square = size or _square_of(count, strides)
    if square is None or _num_cells(square, strides) != count:
        return None
    number, bins = tensors[classes[0]].shape[2], tensors[distances[0]].shape[2] // 4
    return HeadLayout(
        name="distances by stride",
        num_classes=number,
        size=square,
        strides=strides,
        probabilities=all(_is_probability(tensors[place]) for place in classes),
        order=(*classes, *distances),
        sentence=f"{len(classes)} maps of strides {', '.join(map(str, strides))}: {number} classes and distances in "
        f"{bins} steps, as of PicoDet and NanoDet.",
    )


def _one_pair(
    classes: Tensor, boxes: Tensor, order: tuple[int, int], size: tuple[int, int] | None
) -> HeadLayout | None:
    number = classes.shape[2]
    shares = _sums_to_one(classes)
    likeliest = classes.mean(dim=(0, 1)).argmax()
    background = int(likeliest) in (0, number - 1) and number > 1
    softmax = shares or (not _is_probability(classes) and background and _is_mostly(classes, int(likeliest)))
    as_corners = bool((boxes[..., 2:] >= boxes[..., :2]).float().mean() > 0.99)
    place = "the first" if int(likeliest) == 0 else "the last"
    how = f"a softmax of {number} classes, {place} the background" if softmax else f"{number} classes"
    form = "corners" if as_corners else "centre, width and height"
    return HeadLayout(
        name="softmax pair" if softmax else "sigmoid pair",
        num_classes=number,
        size=size or (0, 0),
        probabilities=_is_probability(classes),
        relative=_is_relative(boxes),
        as_corners=as_corners,
        background_last=int(likeliest) != 0,
        order=order,
        sentence=f"{boxes.shape[1]:,} boxes ({form}) with {how}.",
    )


def _decode_pair(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    classes, boxes = (tensors[place] for place in layout.order)
    boxes = _in_pixels(boxes if layout.as_corners else decoding.corners(boxes), layout)
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


def _decode_levels(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    import torch

    number = len(layout.strides)
    classes = torch.cat([tensors[place] for place in layout.order[:number]], dim=1)
    distances = torch.cat([tensors[place] for place in layout.order[number:]], dim=1)
    boxes = decoding.distribution_boxes(distances, layout.size, layout.strides)
    return decoding.sigmoid_rows(boxes, decoding.logits_of(classes, probabilities=layout.probabilities))


# ---- maps (N, C, H, W)


def _maps(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> HeadLayout | None:
    order = tuple(sorted(range(len(tensors)), key=lambda place: -math.prod(tensors[place].shape[2:4])))
    maps = [tensors[place] for place in order]
    if maps[0].ndim == 4 and len({tuple(each.shape[2:]) for each in maps}) == 1 and len(maps) in (2, 3, 4):
        return _centre_maps(tensors, size)
    if len(maps) != len(_STRIDES):
        return None
    sides = [tuple(each.shape[2:4]) for each in maps]
    full = size or (sides[0][0] * _STRIDES[0], sides[0][1] * _STRIDES[0])
    if sides != [(-(-full[0] // stride), -(-full[1] // stride)) for stride in _STRIDES]:
        return None
    if maps[0].ndim == 5:
        return _anchored(maps[0].shape[4] - 5, full, order)
    width = maps[0].shape[1]
    if any(each.shape[1] != width for each in maps):
        return None
    if width % 3 == 0 and width // 3 > 5 and (width <= 4 * _BINS or _objects_are_rare(maps, width // 3)):
        return _anchored(width // 3 - 5, full, order)
    if width <= 4 * _BINS:
        return None
    return HeadLayout(
        name="maps of distributions",
        num_classes=width - 4 * _BINS,
        size=full,
        strides=_STRIDES,
        order=order,
        sentence=f"Maps of strides 8, 16 and 32: distances in {_BINS} steps (DFL) and {width - 4 * _BINS} classes, as "
        "of YOLOv8.",
    )


def _anchored(classes: int, size: tuple[int, int], order: tuple[int, ...]) -> HeadLayout | None:
    if classes < 1:
        return None
    return HeadLayout(
        name="anchored maps",
        num_classes=classes,
        size=size,
        strides=_STRIDES,
        order=order,
        sentence=f"Maps of strides 8, 16 and 32 with three anchors and {classes} classes, as of YOLOv5; the anchors "
        "are taken to be those for COCO.",
    )


def _decode_maps(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    flat = decoding.flat_maps([tensors[place] for place in layout.order])
    boxes = decoding.distribution_boxes(flat[..., : 4 * _BINS], layout.size, layout.strides)
    return decoding.sigmoid_rows(boxes, flat[..., 4 * _BINS :])


def _decode_anchored(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    import torch

    parts = []
    for place, stride, anchors in zip(layout.order, layout.strides, decoding.YOLO_ANCHORS, strict=True):
        values = tensors[place]
        if values.ndim == 4:
            images, _, height, width = values.shape
            values = values.reshape(images, 3, -1, height, width).permute(0, 1, 3, 4, 2)
        boxes = decoding.anchored_boxes(values[..., :4], stride, anchors)
        rest = values[..., 4:].flatten(1, 3)
        parts.append(decoding.sigmoid_rows(boxes, rest[..., 1:], rest[..., 0]))
    return torch.cat(parts, dim=1)


def _centre_maps(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> HeadLayout | None:
    pairs = [place for place, each in enumerate(tensors) if each.shape[1] == 2]
    others = [place for place in range(len(tensors)) if place not in pairs]
    if not pairs or len(pairs) > 2 or not others or size is None:
        return None
    heat, *points = sorted(others, key=lambda place: (not _is_probability(tensors[place]), tensors[place].shape[1]))
    if any(tensors[place].shape[1] % 2 or len(pairs) < 2 for place in points) or len(points) > 1:
        return None
    means = {place: float(tensors[place].float().abs().mean()) for place in pairs}
    sizes = max(pairs, key=lambda place: means[place])
    offsets = tuple(place for place in pairs if place != sizes)
    classes, stride = tensors[heat].shape[1], size[0] // tensors[heat].shape[2]
    logarithms = bool(points) and _are_logarithms(tensors[sizes], size, stride)
    about = f"A map of centres for {'one class' if classes == 1 else f'each of {classes} classes'}, with "
    about += "logarithms of heights and widths" if logarithms else "sizes"
    about += " and offsets" if offsets else ""
    points_note = f" (of its {tensors[points[0]].shape[1] // 2} points nothing is measured)" if points else ""
    return HeadLayout(
        name="centre maps of logarithms" if logarithms else "centre maps",
        num_classes=classes,
        size=size,
        strides=(stride,),
        probabilities=_is_probability(tensors[heat]),
        order=(heat, sizes, *offsets),
        sentence=f"{about}, as of {'CenterFace' if logarithms else 'CenterNet'}{points_note}.",
    )


def _are_logarithms(sizes: Tensor, image: tuple[int, int], stride: int) -> bool:
    """Return whether sizes, as logarithms of cells, are at most a few times those of the image."""
    return float(sizes.float().max()) <= math.log(_LARGEST_SHARE * max(image) / stride)


def _decode_centres(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    heat, sizes, *offsets = (tensors[place] for place in layout.order)
    offset = offsets[0] if offsets else None
    if layout.name == "centre maps of logarithms":  # rows before columns, and from the middle of a cell
        sizes, offset = sizes.flip(1).exp(), None if offset is None else offset.flip(1) + 0.5
    boxes = decoding.centre_map_boxes(sizes, offset, layout.strides[0])
    logits = decoding.logits_of(decoding.flat_maps([heat]), probabilities=layout.probabilities)
    return decoding.sigmoid_rows(boxes, logits)


# ---- ranges of values


def _is_probability(values: Tensor) -> bool:
    return bool(values.min() >= -_SLACK) and bool(values.max() <= 1 + _SLACK)


def _sums_to_one(values: Tensor) -> bool:
    return _is_probability(values) and bool(((values.sum(dim=2) - 1).abs() < 1e-2).all())


def _has_sides(values: Tensor) -> bool:
    """Return whether nearly all rows of four have no negative width or height, as boxes and not logits of classes."""
    as_corners = (values[..., 2:] >= values[..., :2]).all(dim=2).float().mean()
    as_sides = (values[..., 2:] >= 0).all(dim=2).float().mean()
    return bool(max(as_corners, as_sides) > _NEARLY_ALL)


def _is_relative(boxes: Tensor) -> bool:
    return bool(boxes.abs().max() <= 2)


def _is_any(values: Tensor) -> bool:
    """Return whether values are below zero as well, as those of no size or place are."""
    return bool(values.min() < 0)


def _is_small(values: Tensor) -> bool:
    """Return whether places are shifts inside of a cell rather than pixels."""
    return bool(values.abs().median() < 4)


def _is_mostly(classes: Tensor, place: int) -> bool:
    return bool((classes.argmax(dim=2) == place).float().mean() > 0.5)


def _is_final(rows: Tensor) -> bool:
    """Return whether one column falls, as scores after sorting do, and another is of whole numbers."""
    falls = [bool((rows[:, 1:, c] <= rows[:, :-1, c] + 1e-6).all()) for c in range(rows.shape[2])]
    whole = [bool((rows[..., c] == rows[..., c].round()).all()) for c in range(rows.shape[2])]
    return any(falls) and any(whole)


def _objects_are_rare(maps: Sequence[Tensor], width: int) -> bool:
    """Return whether the fifth channel of three parts is far below zero, as an object's logit is in most cells."""
    return all(float(each[:, 4::width].mean()) < -2 for each in maps)


def _num_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    return sum(math.prod(-(-side // stride) for side in size) for stride in strides)


def _square_of(count: int, strides: Sequence[int]) -> tuple[int, int] | None:
    """Return the size of the square input that has so many cells; None where there is none."""
    step = strides[-1]
    for side in range(step, 4097, step):
        if _num_cells((side, side), strides) == count:
            return side, side
    return None


def _in_pixels(boxes: Tensor, layout: HeadLayout) -> Tensor:
    if not layout.relative:
        return boxes
    height, width = layout.size
    if not height:
        raise UnsupportedModel("Boxes are shares of the input's sides, and the size of the input is not known.")
    return boxes * boxes.new_tensor([width, height, width, height])


_DECODERS = {
    "distributions": _decode_one,
    "grid": _decode_one,
    "boxes and classes": _decode_one,
    "softmax pair": _decode_pair,
    "sigmoid pair": _decode_pair,
    "distances by stride": _decode_levels,
    "maps of distributions": _decode_maps,
    "anchored maps": _decode_anchored,
    "centre maps": _decode_centres,
    "centre maps of logarithms": _decode_centres,
}
