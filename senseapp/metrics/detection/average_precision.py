"""Average precision over all images from their records, for any weights of the images, such as bootstrap draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.metrics.detection.matching import Floats, unpacked
from senseapp.metrics.detection.rules import NUM_RECALLS, THRESHOLDS
from senseapp.metrics.records import Record

RECALLS: Floats = np.linspace(0.0, 1.0, NUM_RECALLS)
_TINY = np.spacing(1)
_DRAWS_AT_ONCE = 2**15  # numbers of one array over draws and detections: it stays in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """All detections of one class, the highest scores first.

    Attributes:
        num_objects: of each image, (images,).
        images: of each detection, (n,).
        right, wrong: (thresholds, n); those that are neither count nothing.
    """

    num_objects: Floats
    images: NDArray[np.int64]
    right: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


def tables_of(records: Sequence[Record], num_thresholds: int = len(THRESHOLDS)) -> dict[int, ClassTable]:
    """Return the table of each class that records of images name."""
    found: dict[int, list[tuple[int, Floats, NDArray[np.bool_], NDArray[np.bool_]]]] = {}
    objects: dict[int, Floats] = {}
    for image, record in enumerate(records):
        for each in unpacked(record, num_thresholds):
            objects.setdefault(each.label, np.zeros(len(records)))[image] += each.num_objects
            rows = found.setdefault(each.label, [])
            rows.append((image, each.scores, each.right, ~each.right & ~each.ignored))
    return {label: _table(objects[label], rows) for label, rows in sorted(found.items())}


def _table(num_objects: Floats, rows: list[tuple[int, Floats, NDArray[np.bool_], NDArray[np.bool_]]]) -> ClassTable:
    order = np.argsort(-np.concatenate([scores for _, scores, _, _ in rows]), kind="stable")
    images = np.concatenate([np.full(len(scores), image) for image, scores, _, _ in rows])
    right = np.concatenate([right for _, _, right, _ in rows], axis=1)
    wrong = np.concatenate([wrong for _, _, _, wrong in rows], axis=1)
    return ClassTable(
        num_objects=num_objects,
        images=images[order].astype(np.int64),
        right=right[:, order],
        wrong=wrong[:, order],
    )


def average_precisions(table: ClassTable, weights: Floats, *, smooth: bool = False) -> Floats:
    """Return the average precision of one class, (draws, thresholds); NaN where a draw has no object of it.

    ``weights`` are how often each image counts, (draws, images). Where ``smooth``, precision is averaged over all
    recalls and not over 101, which would round what one image changes.
    """
    thresholds, count = table.right.shape
    totals = weights @ table.num_objects  # (draws,)
    found = np.zeros((len(weights), thresholds))
    step = max(1, _DRAWS_AT_ONCE // max(1, count))
    for start in range(0, len(weights), step):
        drawn = slice(start, start + step)
        each = weights[drawn][:, table.images]  # (draws, n)
        for row in range(thresholds):
            right = np.cumsum(each * table.right[row], axis=1)
            wrong = np.cumsum(each * table.wrong[row], axis=1)
            found[drawn, row] = _area(right, wrong, totals[drawn], smooth=smooth)
    found[totals == 0] = np.nan
    return found


def _area(right: Floats, wrong: Floats, totals: Floats, *, smooth: bool) -> Floats:
    """Return the mean over recalls of the best precision at that recall or a higher one, (draws,)."""
    if not right.shape[1]:
        return np.zeros(len(right))
    recall = right / np.maximum(totals, _TINY)[:, None]
    precision = right / (right + wrong + _TINY)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    if smooth:
        over_all: Floats = (best * np.diff(recall, axis=1, prepend=0)).sum(axis=1)
        return over_all
    reached = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    gained = np.diff(reached, axis=1, prepend=0)
    area: Floats = (best * gained).sum(axis=1) / len(RECALLS)
    return area


def mean_average_precision(
    tables: dict[int, ClassTable], weights: Floats, rows: slice = slice(None), *, smooth: bool = False
) -> Floats:
    """Return the mean over thresholds ``rows`` and over the classes that have an object, (draws,); NaN without any."""
    if not tables:
        return np.full(len(weights), np.nan)
    each = np.stack(
        [average_precisions(table, weights, smooth=smooth)[:, rows].mean(axis=1) for table in tables.values()]
    )
    known = ~np.isnan(each)
    counts = known.sum(axis=0)
    sums = np.where(known, each, 0.0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(len(weights), np.nan), where=counts > 0)
    return means
