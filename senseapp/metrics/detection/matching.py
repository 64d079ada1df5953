"""Detections of one image, matched with its objects as pycocotools matches them, and average precision of all images.

The record of each image holds its matches, so that the images can have any weights, such as those of bootstrap draws.

Source: Lin et al. (2014), Microsoft COCO, and ``pycocotools.cocoeval``: detections are matched in order of their score,
each with the free object of its class that it overlaps most; crowds may be matched any number of times and count
nothing, nor do objects outside of a range of areas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from senseapp.core.registry import grouped
from senseapp.metrics.detection.rows import (
    AREAS,
    BOX,
    FOUND,
    LEAST_SCORE,
    MOST_DETECTIONS,
    SAME_BOX,
    SURE_SCORE,
    THRESHOLDS,
    RowKind,
    blocks,
    class_scores,
    scores,
)
from senseapp.metrics.records import Record

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
_RECALLS: Floats = np.linspace(0.0, 1.0, 101)  # at which precision is averaged, as by pycocotools
_TINY = np.spacing(1)
_MOST_CANDIDATES = 1000  # pairs before suppression, as torchvision's RetinaNet and RPN take by level


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Objects of one image: boxes (n, 4), as left, top, right, bottom, in pixels, and classes (n,).

    Those that are a ``crowd``, (n,), stand for many and are never missed.
    """

    boxes: Floats
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]

    @classmethod
    def of(cls, boxes: Any, labels: Any, crowd: Any = None) -> Objects:
        """Return objects from arrays or tensors of these shapes."""
        sides = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        marks = np.zeros(len(sides), dtype=bool) if crowd is None else np.asarray(crowd, dtype=bool).reshape(-1)
        return cls(boxes=sides, labels=np.asarray(labels, dtype=np.int64).reshape(-1), crowd=marks)


def box_areas(boxes: Floats) -> Floats:
    """Return the areas of boxes (n, 4)."""
    found: Floats = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    return found


def pair_overlaps(found: Floats, objects: Floats, crowd: NDArray[np.bool_]) -> Floats:
    """Return the intersection over union of each pair, (found, objects); over the found area alone for crowds."""
    low = np.maximum(found[:, None, :2], objects[None, :, :2])
    shared = (np.minimum(found[:, None, 2:], objects[None, :, 2:]) - low).clip(0).prod(axis=2)
    own, other = box_areas(found)[:, None], box_areas(objects)[None]
    whole = np.where(crowd[None], own, own + other - shared)
    shares: Floats = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord:
    """What became of the detections of one class in one image, for one range of areas.

    ``num_objects`` can be missed. Scores, (n,), are descending. What is neither ``right`` nor ``ignored``, (thresholds,
    n), is wrong.
    """

    label: int
    num_objects: int
    scores: Floats
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]


def match_image(
    detections: Floats, objects: Objects, *, area: str = "all", thresholds: Sequence[float] | Floats = THRESHOLDS
) -> list[ClassRecord]:
    """Match the detections of one image, (n, 6) as score, class and box, class by class."""
    found, labels = [], detections[:, 1].astype(np.int64)
    for label in np.union1d(labels, objects.labels).tolist():
        own = detections[labels == label]
        own = own[np.argsort(-own[:, 0], kind="stable")][:MOST_DETECTIONS]
        at = np.flatnonzero(objects.labels == label)
        outside = _outside(objects.boxes[at], AREAS[area]) | objects.crowd[at]
        at, outside = at[np.argsort(outside, kind="stable")], np.sort(outside)  # objects that count come first
        matched, ignored = _matched(own[:, 2:], objects, at, outside, np.asarray(thresholds, dtype=np.float64))
        ignored |= ~matched & _outside(own[:, 2:], AREAS[area])
        found.append(
            ClassRecord(
                label=label,
                num_objects=int((~outside).sum()),
                scores=own[:, 0],
                right=matched & ~ignored,
                ignored=ignored,
            )
        )
    return found


def _outside(boxes: Floats, limits: tuple[float, float]) -> NDArray[np.bool_]:
    areas = box_areas(boxes)
    return (areas < limits[0]) | (areas > limits[1])


def _matched(
    boxes: Floats, objects: Objects, at: NDArray[np.int64], left_out: NDArray[np.bool_], thresholds: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which boxes of one class match one of the objects ``at``, and which of these one that counts nothing."""
    # As pycocotools: boxes that are equal but for rounding still match at a threshold of 1.
    crowd, least = objects.crowd[at], np.minimum(thresholds, 1 - 1e-10)
    overlaps = pair_overlaps(boxes, objects.boxes[at], crowd)
    matched, ignored = (np.zeros((len(least), len(boxes)), dtype=bool) for _ in range(2))
    taken = np.zeros((len(least), len(at)), dtype=bool)
    for place in np.flatnonzero(overlaps.max(axis=1, initial=0.0) >= least.min()).tolist():
        blocked = (taken & ~crowd) | (overlaps[place] < least[:, None])  # (thresholds, objects)
        # The object that overlaps most, of equals the last; objects that count nothing come behind all others.
        fits = np.where(blocked, -np.inf, overlaps[place] - 2.0 * left_out)[:, ::-1]
        found = np.flatnonzero(np.isfinite(fits.max(axis=1)))
        chosen = len(at) - 1 - fits[found].argmax(axis=1)
        taken[found, chosen] = matched[found, place] = True
        ignored[found, place] = left_out[chosen]
    return matched, ignored


def packed(records: Sequence[ClassRecord]) -> list[float]:
    """Return records of one image as numbers: for each class its label, objects, detections; then scores and bits."""
    numbers: list[float] = []
    for each in records:
        bits = 2 ** np.arange(len(each.right), dtype=np.float64)
        numbers += [float(each.label), float(each.num_objects), float(len(each.scores))]
        numbers += each.scores.tolist()
        numbers += (bits @ each.right).tolist()
        numbers += (bits @ each.ignored).tolist()
    return numbers


def unpacked(numbers: Sequence[float], num_thresholds: int = len(THRESHOLDS)) -> Iterator[ClassRecord]:
    """Yield the records that :func:`packed` wrote."""
    values, start = np.asarray(numbers, dtype=np.float64), 0
    bits = 2 ** np.arange(num_thresholds, dtype=np.int64)[:, None]
    while start < len(values):
        label, num_objects, count = (int(each) for each in values[start : start + 3])
        scores, right, ignored = values[start + 3 : start + 3 + 3 * count].reshape(3, count)
        yield ClassRecord(
            label=label,
            num_objects=num_objects,
            scores=scores,
            right=(right.astype(np.int64)[None] & bits) > 0,
            ignored=(ignored.astype(np.int64)[None] & bits) > 0,
        )
        start += 3 + 3 * count


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """All detections of one class, the highest scores first: the image of each, (n,), and the objects of each image.

    Of ``right`` and ``wrong``, (thresholds, n), those that are neither count nothing.
    """

    num_objects: Floats
    images: NDArray[np.int64]
    right: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


def found_objects(records: Sequence[Record], num_thresholds: int) -> Counter[tuple[int, int]]:
    """Return how many objects of each image and class are found at the least overlap."""
    found: Counter[tuple[int, int]] = Counter()
    for image, record in enumerate(records):
        for each in unpacked(record, num_thresholds):
            found[image, each.label] += int(each.right[0].sum())
    return found


def tables_of(records: Sequence[Record], num_thresholds: int) -> dict[int, ClassTable]:
    """Return the table of each class that records of images name."""
    found = grouped(
        (each.label, (image, each)) for image, record in enumerate(records) for each in unpacked(record, num_thresholds)
    )
    return {label: _table(rows, len(records)) for label, rows in sorted(found.items())}


def _table(rows: Sequence[tuple[int, ClassRecord]], num_images: int) -> ClassTable:
    num_objects = np.zeros(num_images)
    num_objects[[image for image, _ in rows]] = [each.num_objects for _, each in rows]
    order = np.argsort(-np.concatenate([each.scores for _, each in rows]), kind="stable")
    right = np.concatenate([each.right for _, each in rows], axis=1)[:, order]
    return ClassTable(
        num_objects=num_objects,
        images=np.repeat([image for image, _ in rows], [len(each.scores) for _, each in rows])[order],
        right=right,
        wrong=~right & ~np.concatenate([each.ignored for _, each in rows], axis=1)[:, order],
    )


def average_precisions(table: ClassTable, weights: Floats) -> Floats:
    """Return the precision of a class, (draws, thresholds), for weights (draws, images); NaN without an object."""
    totals = weights @ table.num_objects  # (draws,)
    kinds = [kind.tobytes() for kind in np.stack([table.right, table.wrong], axis=1)]
    alike = [kinds.index(kind) for kind in kinds]  # the first threshold with the same outcomes, (thresholds,)
    found = np.zeros((len(weights), len(kinds)))
    # Numbers of one array over draws and detections: it stays in the cache.
    step = max(1, 2**15 // max(1, len(table.images)))
    for start in range(0, len(weights), step):
        drawn = slice(start, start + step)
        each = weights[drawn][:, table.images]  # (draws, n)
        everything = np.cumsum(each, axis=1)
        for row in sorted(set(alike)):
            right, counted = table.right[row], table.right[row] | table.wrong[row]
            numbers = everything if counted.all() else np.cumsum(each * counted, axis=1)
            found[drawn, row] = _area(each[:, right], numbers[:, right], totals[drawn])
    found[totals == 0] = np.nan
    return found[:, alike]


def _area(hits: Floats, numbers: Floats, totals: Floats) -> Floats:
    """Return the mean precision at 101 recalls, (draws,), of weighted hits and detections, (draws, right)."""
    if not hits.shape[1]:
        return np.zeros(len(hits))
    right = np.cumsum(hits, axis=1)
    best = np.maximum.accumulate((right / (numbers + _TINY))[:, ::-1], axis=1)[:, ::-1]
    recall = right / np.maximum(totals, _TINY)[:, None]
    reached = np.searchsorted(_RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    area: Floats = (best * np.diff(reached, axis=1, prepend=0)).sum(axis=1) / len(_RECALLS)
    return area


# ---- detections: candidates that are left after thresholds and non-maximum suppression, class by class


def candidates_of(rows: Tensor, class_boxes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the likeliest pairs of box and class of each image, (n, 6) as score, class and box, highest score first.

    Rows are (N, R, 6 + K); the last P have a box of each class, ``class_boxes`` (N, P, K, 4), the others one box.
    """
    import torch

    parts = []
    for kind, place in blocks(rows):
        if kind is not RowKind.ANCHOR:
            boxes = class_boxes if kind is RowKind.PROPOSAL else None
            parts.append(_likeliest(rows[:, place], kind, boxes))
    found = torch.cat(parts, dim=1)
    found = found.gather(1, found[..., :1].argsort(dim=1, descending=True, stable=True).expand_as(found))
    return tuple(each[each[:, 0] > LEAST_SCORE][:_MOST_CANDIDATES] for each in found)


def _likeliest(rows: Tensor, kind: RowKind, class_boxes: Tensor | None) -> Tensor:
    import torch

    most = min(_MOST_CANDIDATES, rows.shape[1])
    chosen = scores(rows, kind).topk(most, dim=1).indices  # they hold the likeliest pairs
    rows = rows.gather(1, chosen[..., None].expand(-1, -1, rows.shape[2]))
    shares = class_scores(rows, kind)  # (N, most, K)
    values, flat = shares.flatten(1).topk(min(_MOST_CANDIDATES, shares[0].numel()), dim=1)
    row, label = flat // shares.shape[2], flat % shares.shape[2]
    boxes = rows[..., BOX].gather(1, row[..., None].expand(-1, -1, 4))
    if class_boxes is not None:
        images = torch.arange(len(rows), device=rows.device)[:, None]
        boxes = class_boxes[images, chosen.gather(1, row), label]
    return torch.cat([values[..., None], label[..., None].to(values.dtype), boxes], dim=2)


def detections_of(candidates: Tensor, least_score: float = LEAST_SCORE) -> Floats:
    """Return the detections of one image, (n, 6) as score, class and box, highest score first."""
    from torchvision.ops import batched_nms

    found = candidates[candidates[:, 0] >= least_score].float()
    kept = batched_nms(found[:, 2:], found[:, 0], found[:, 1].long(), SAME_BOX)[:MOST_DETECTIONS]
    result: Floats = found[kept].double().cpu().numpy()
    return result


def objects_of(detections: Floats, least_score: float = SURE_SCORE) -> Objects:
    """Return the sure detections of one image as objects to be found."""
    sure = detections[detections[:, 0] >= least_score]
    return Objects.of(sure[:, 2:], sure[:, 1].astype(np.int64))


def sure_detections(predictions: Mapping[str, Any]) -> Floats:
    """Return the detections of one image with a sure score: from :data:`SURE_SCORE` on, or the network's own."""
    return detections_of(predictions["candidates"], float(predictions.get("sure_score", SURE_SCORE)))


def best_threshold(images: Iterable[tuple[Floats, Objects]]) -> float:
    """Return the score, midway between two, from which F1 is best; the usual one where no object is found."""
    matched = [each for found, objects in images for each in match_image(found, objects, thresholds=(FOUND,))]
    sure = np.concatenate([np.zeros(0), *(each.scores[~each.ignored[0]] for each in matched)])
    right = np.concatenate([np.zeros(0), *(each.right[0][~each.ignored[0]] for each in matched)])
    order = np.argsort(-sure, kind="stable")
    sure, hits = np.append(sure[order], LEAST_SCORE), np.cumsum(right[order])
    if not hits.any():
        return SURE_SCORE
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + sum(each.num_objects for each in matched))
    best = int(np.where(sure[:-1] > sure[1:], f1, 0.0).argmax())
    return float(sure[best] + sure[best + 1]) / 2
