"""Boxes with class logits before non-maximum suppression, as rows of one tensor, (N, R, 6 + K), and the thresholds.

A row is one anchor, grid cell, query or proposal of one image. Columns: left, top, right and bottom in pixels of the
network's input; the :class:`RowKind`; the logit of an object; then the logits of K classes. The kind of a row is the
same in all images. Constants stand in columns that a kind does not use, so that they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BOX, KIND, OBJECT, CLASSES = slice(0, 4), 4, 5, slice(6, None)
"""Columns of a row."""
NUM_FIXED = 6  # the columns before those of the classes
_TINY = 1e-9  # square pixels: two boxes without area at one place overlap

# ---- by which boxes are counted; plain values, so that reading them loads no numpy

THRESHOLDS = (*((0.95 - 0.5) / 9 * place + 0.5 for place in range(9)), 0.95)
"""Overlaps, as IoU, at which average precision is averaged: those of pycocotools, bit for bit."""
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Ranges of areas, in square pixels of the network's input."""
MOST_DETECTIONS = 100
"""Of one image and class, those of the highest scores."""
LEAST_SCORE = 0.02
"""Of a detection that average precision counts."""
SURE_SCORE = 0.3
"""Of a detection that is shown, and that counts as an object of the original model."""
FOUND = 0.5
"""Overlap, as IoU, from which an object counts as found."""
SAME_BOX = 0.5
"""Overlap, as IoU, above which non-maximum suppression keeps the higher score of two boxes of one class."""


class RowKind(IntEnum):
    """How the logits of a row become probabilities of classes."""

    SOFTMAX = 0
    """Softmax of all classes; the first is the background."""
    SOFTMAX_LAST = 1
    """Softmax of all classes; the last is the background."""
    SIGMOID = 2
    """A sigmoid for each class."""
    OBJECT_TIMES_CLASS = 3
    """Sigmoids of object and class, multiplied."""
    ROOT_OF_PRODUCT = 4
    """The square root of that product, with the object's logit for the centre-ness of FCOS."""
    ANCHOR = 5
    """Sigmoid of the object alone: region proposals before their classes are known."""
    PROPOSAL = 6
    """As SOFTMAX, of a region that the network itself chose: rows of two networks are paired by overlap."""


SOFTMAX = (RowKind.SOFTMAX, RowKind.SOFTMAX_LAST, RowKind.PROPOSAL)
"""Kinds whose classes exclude each other."""


def assembled(
    boxes: Tensor, kind: RowKind, *, logits: Tensor | None, objects: Tensor | None, num_classes: int
) -> Tensor:
    """Return rows, (N, R, 6 + K), of boxes (N, R, 4), class logits (N, R, K) and logits of an object (N, R)."""
    import torch

    fixed = boxes.new_full((*boxes.shape[:2], 1), float(kind))
    has = torch.zeros_like(fixed) if objects is None else objects[..., None].to(boxes.dtype)
    classes = boxes.new_zeros(*boxes.shape[:2], num_classes) if logits is None else logits.to(boxes.dtype)
    return torch.cat([boxes, fixed, has, classes], dim=2)


def blocks(rows: Tensor) -> Iterator[tuple[RowKind, slice]]:
    """Yield each kind with its places along the second axis; rows of one kind follow each other."""
    import torch

    if not rows.shape[0] or not rows.shape[1]:
        return
    kinds, counts = torch.unique_consecutive(rows[0, :, KIND].detach().cpu(), return_counts=True)
    start = 0
    for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        yield RowKind(int(kind)), slice(start, start + count)
        start += count


def class_scores(rows: Tensor, kind: RowKind) -> Tensor:
    """Return scores of classes, (N, R, K), of rows of one kind, 0 of a background; (N, R, 1) of proposals."""
    logits, objects = rows[..., CLASSES], rows[..., OBJECT : OBJECT + 1]
    if kind is RowKind.ANCHOR:
        return objects.sigmoid()
    if kind in SOFTMAX:
        background = objects.new_tensor([logits.shape[-1] - 1 if kind is RowKind.SOFTMAX_LAST else 0])
        return logits.softmax(dim=-1).index_fill(-1, background.long(), 0.0)
    if kind is RowKind.SIGMOID:
        return logits.sigmoid()
    product = logits.sigmoid() * objects.sigmoid()
    return product.sqrt() if kind is RowKind.ROOT_OF_PRODUCT else product


def scores(rows: Tensor, kind: RowKind) -> Tensor:
    """Return the score of the likeliest class of each row of one kind, (N, R)."""
    return class_scores(rows, kind).amax(dim=-1)


def class_divergence(before: Tensor, after: Tensor, kind: RowKind) -> Tensor:
    """Return the KL divergence, in nats, of the class probabilities of each row of one kind, (N, R)."""
    from torch.nn.functional import softplus

    if kind in SOFTMAX:
        old, new = (each[..., CLASSES].log_softmax(dim=-1) for each in (before, after))
        return (old.exp() * (old - new)).sum(dim=-1).clamp_min(0)
    used = slice(OBJECT, OBJECT + 1) if kind is RowKind.ANCHOR else slice(OBJECT, None)
    old, new = before[..., used], after[..., used]
    return (old.sigmoid() * (old - new) + softplus(new) - softplus(old)).sum(dim=-1).clamp_min(0)


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of boxes (..., 4), pairwise along broadcast axes."""
    import torch

    low = torch.maximum(one[..., :2], other[..., :2])
    shared = (torch.minimum(one[..., 2:], other[..., 2:]) - low).clamp_min(0).prod(dim=-1)
    areas = [(each[..., 2:] - each[..., :2]).clamp_min(0).prod(dim=-1) for each in (one, other)]
    return (shared + _TINY) / (areas[0] + areas[1] - shared + _TINY)


def divergence(before: Tensor, after: Tensor) -> Tensor:
    """Return what moved in each image, (N,): class divergence + score · (1 − IoU), summed over its rows.

    A region that the network itself chose is compared with the one of the other network that overlaps it most.
    """
    total = before.new_zeros(before.shape[0])
    for kind, place in blocks(before):
        old, new = before[:, place], after[:, place]
        if kind is RowKind.PROPOSAL:
            nearest = overlaps(old[:, :, None, BOX], new[:, None, :, BOX]).argmax(dim=2)  # (N, R)
            new = new.gather(1, nearest[..., None].expand(-1, -1, new.shape[2]))
        moved = scores(old, kind) * (1 - overlaps(old[..., BOX], new[..., BOX]))
        total = total + (class_divergence(old, new, kind) + moved).sum(dim=1)
    return total
