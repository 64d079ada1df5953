"""Boxes and logits from the raw tensors of known layouts; shapes as :mod:`senseapp.tasks.detection.heads.layout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from senseapp.metrics.detection.rows import RowKind, assembled

if TYPE_CHECKING:
    from torch import Tensor

_NEAR_ZERO = 1e-6  # probabilities below, and as near to 1, have a logit of this
YOLO_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Widths and heights in pixels, for strides 8, 16 and 32; ultralytics/yolov5, ``models/yolov5s.yaml``."""


def logits_of(values: Tensor, *, probabilities: bool) -> Tensor:
    """Return logits, from probabilities where ``values`` are these."""
    return values.clamp(_NEAR_ZERO, 1 - _NEAR_ZERO).logit() if probabilities else values


def log_shares(values: Tensor) -> Tensor:
    """Return logits of a softmax from its probabilities."""
    return values.clamp_min(_NEAR_ZERO).log()


def corners(boxes: Tensor) -> Tensor:
    """Return (left, top, right, bottom) of boxes (..., 4) given as centre, width and height."""
    import torch

    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def cells(size: tuple[int, int], strides: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper left corner of each cell in cells, (A, 2), and its stride, (A, 1), level by level."""
    import torch

    places, sides = [], []
    for stride in strides:
        height, width = -(-size[0] // stride), -(-size[1] // stride)
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        places.append(torch.stack([x, y], dim=-1).reshape(-1, 2))
        sides.append(torch.full((height * width, 1), stride))
    return torch.cat(places).to(like), torch.cat(sides).to(like)


def grid_boxes(values: Tensor, size: tuple[int, int], strides: Sequence[int]) -> Tensor:
    """Return boxes of YOLOX, (N, A, 4): a shift in cells from each cell's corner, and logarithms of sizes in cells."""
    import torch

    places, sides = cells(size, strides, values)
    centre = (values[..., :2] + places) * sides
    return corners(torch.cat([centre, values[..., 2:].exp() * sides], dim=-1))


def distribution_boxes(values: Tensor, size: tuple[int, int], strides: Sequence[int]) -> Tensor:
    """Return boxes (N, A, 4) from distributions (N, A, 4 · B) of the distances to the four sides, in cells.

    Source: Li et al. (2020), Generalized Focal Loss, equation 6.
    """
    import torch

    bins = values.shape[-1] // 4
    shares = values.reshape(*values.shape[:2], 4, bins).softmax(dim=-1)
    distances = (shares * torch.arange(bins, dtype=values.dtype, device=values.device)).sum(dim=-1)
    places, sides = cells(size, strides, values)
    centre = places + 0.5
    return torch.cat([centre - distances[..., :2], centre + distances[..., 2:]], dim=-1) * sides


def anchored_boxes(values: Tensor, stride: int, anchors: Sequence[tuple[int, int]]) -> Tensor:
    """Return boxes of one map of YOLOv5, (N, a, H, W, 4), decoded by its anchors, (N, a · H · W, 4)."""
    import torch

    height, width = values.shape[2:4]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([x, y], dim=-1).to(values)
    shares = values.sigmoid()
    centre = (2 * shares[..., :2] - 0.5 + places) * stride
    sides = (2 * shares[..., 2:]) ** 2 * torch.tensor(anchors, dtype=values.dtype, device=values.device)[:, None, None]
    return corners(torch.cat([centre, sides], dim=-1)).flatten(1, 3)


def flat_maps(maps: Sequence[Tensor]) -> Tensor:
    """Return maps (N, C, H, W) as one tensor (N, A, C)."""
    import torch

    return torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)


def centre_map_boxes(sizes: Tensor, offsets: Tensor | None, stride: int) -> Tensor:
    """Return a box for each pixel of maps of sizes and offsets, (N, 2, H, W) in cells of ``stride`` pixels.

    Source: Zhou et al. (2019), Objects as Points, section 4.
    """
    import torch

    height, width = sizes.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([x, y]).to(sizes)[None]
    centre = places if offsets is None else places + offsets
    boxes = torch.cat([centre.expand_as(sizes), sizes], dim=1) * stride
    return corners(flat_maps([boxes]))


def sigmoid_rows(boxes: Tensor, logits: Tensor, objects: Tensor | None = None) -> Tensor:
    """Return rows with a sigmoid for each class, times that of an object where there is one, (N, A)."""
    kind = RowKind.SIGMOID if objects is None else RowKind.OBJECT_TIMES_CLASS
    return assembled(boxes, kind, logits=logits, objects=objects, num_classes=logits.shape[2])


def softmax_rows(boxes: Tensor, logits: Tensor, *, background_last: bool) -> Tensor:
    """Return rows with a softmax over classes and a background."""
    kind = RowKind.SOFTMAX_LAST if background_last else RowKind.SOFTMAX
    return assembled(boxes, kind, logits=logits, objects=None, num_classes=logits.shape[2])
