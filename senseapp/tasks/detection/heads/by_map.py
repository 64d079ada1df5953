"""Layouts of outputs with axes of height and width: maps by stride, with anchors or without, and maps of centres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from senseapp.tasks.detection.heads import decoding
from senseapp.tasks.detection.heads.layout import DISTANCES, STRIDES, HeadLayout
from senseapp.tasks.detection.heads.values import is_probability, objects_are_rare

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_SHARE = 4  # of an object, of the longer side of the image


def maps_of(tensors: Sequence[Tensor], size: tuple[int, int] | None) -> HeadLayout | None:
    """Return the layout of maps (N, C, H, W), or of YOLOv5 (N, a, H, W, C); None for others."""
    order = tuple(sorted(range(len(tensors)), key=lambda place: -math.prod(tensors[place].shape[2:4])))
    maps = [tensors[place] for place in order]
    if maps[0].ndim == 4 and len({tuple(each.shape[2:]) for each in maps}) == 1 and len(maps) in (2, 3, 4):
        return _centre_maps(tensors, size)
    if len(maps) != len(STRIDES):
        return None
    sides = [tuple(each.shape[2:4]) for each in maps]
    full = size or (sides[0][0] * STRIDES[0], sides[0][1] * STRIDES[0])
    if sides != [(-(-full[0] // stride), -(-full[1] // stride)) for stride in STRIDES]:
        return None
    if maps[0].ndim == 5:
        return _anchored(maps[0].shape[4] - 5, full, order)
    width = maps[0].shape[1]
    if any(each.shape[1] != width for each in maps):
        return None
    if width % 3 == 0 and width // 3 > 5 and (width <= DISTANCES or objects_are_rare(maps, width // 3)):
        return _anchored(width // 3 - 5, full, order)
    if width <= DISTANCES:
        return None
    return HeadLayout(
        name="maps of distributions",
        num_classes=width - DISTANCES,
        size=full,
        strides=STRIDES,
        order=order,
        family="YOLOv5 to v11",
    )


def _anchored(classes: int, size: tuple[int, int], order: tuple[int, ...]) -> HeadLayout | None:
    if classes < 1:
        return None
    return HeadLayout(
        name="anchored maps",
        num_classes=classes,
        size=size,
        strides=STRIDES,
        order=order,
        family="YOLOv5 to v11",
    )


def decode_maps(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of maps of distributions."""
    flat = decoding.flat_maps([tensors[place] for place in layout.order])
    boxes = decoding.distribution_boxes(flat[..., :DISTANCES], layout.size, layout.strides)
    return decoding.sigmoid_rows(boxes, flat[..., DISTANCES:])


def decode_anchored(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of maps with three anchors."""
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
    heat, *points = sorted(others, key=lambda place: (not is_probability(tensors[place]), tensors[place].shape[1]))
    if any(tensors[place].shape[1] % 2 or len(pairs) < 2 for place in points) or len(points) > 1:
        return None
    if tensors[0].is_meta:
        means = dict.fromkeys(pairs, 0.0)
    else:
        means = {place: float(tensors[place].float().abs().mean()) for place in pairs}
    sizes = max(pairs, key=lambda place: means[place])
    offsets = tuple(place for place in pairs if place != sizes)
    classes, stride = tensors[heat].shape[1], size[0] // tensors[heat].shape[2]
    logarithms = bool(points) and _are_logarithms(tensors[sizes], size, stride)
    return HeadLayout(
        name="centre maps of logarithms" if logarithms else "centre maps",
        num_classes=classes,
        size=size,
        strides=(stride,),
        probabilities=is_probability(tensors[heat]),
        order=(heat, sizes, *offsets),
        num_unread=len(points),
        family="CenterFace" if logarithms else "",
    )


def _are_logarithms(sizes: Tensor, image: tuple[int, int], stride: int) -> bool:
    """Return whether sizes, as logarithms of cells, are at most a few times those of the image."""
    return not sizes.is_meta and float(sizes.float().max()) <= math.log(_LARGEST_SHARE * max(image) / stride)


def decode_centres(tensors: Sequence[Tensor], layout: HeadLayout) -> Tensor:
    """Return the rows, (N, R, 6 + K), of maps of centres."""
    heat, sizes, *offsets = (tensors[place] for place in layout.order)
    offset = offsets[0] if offsets else None
    if layout.name == "centre maps of logarithms":  # rows before columns, and from the middle of a cell
        sizes, offset = sizes.flip(1).exp(), None if offset is None else offset.flip(1) + 0.5
    boxes = decoding.centre_map_boxes(sizes, offset, layout.strides[0])
    logits = decoding.logits_of(decoding.flat_maps([heat]), probabilities=layout.probabilities)
    return decoding.sigmoid_rows(boxes, logits)
