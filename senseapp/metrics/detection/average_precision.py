"""Average precision over all images from their records, for any weights of the images, such as bootstrap draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.metrics.detection.matching import ClassRecord, Floats, unpacked
from senseapp.metrics.detection.rules import NUM_RECALLS, THRESHOLDS
from senseapp.metrics.records import Record

RECALLS: Floats = np.linspace(0.0, 1.0, NUM_RECALLS)
_TINY = np.spacing(1)


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


def found_objects(records: Sequence[Record], num_thresholds: int) -> Counter[tuple[int, int]]:
    """Return how many objects of each image and class are found at the least overlap."""
    found: Counter[tuple[int, int]] = Counter()
    for image, record in enumerate(records):
        for each in unpacked(record, num_thresholds):
            found[image, each.label] += int(each.right[0].sum())
    return found


def tables_of(records: Sequence[Record], num_thresholds: int = len(THRESHOLDS)) -> dict[int, ClassTable]:
    """Return the table of each class that records of images name."""
    return tables_of_matches([list(unpacked(record, num_thresholds)) for record in records])


def tables_of_matches(matches: Sequence[Sequence[ClassRecord]]) -> dict[int, ClassTable]:
    """Return the table of each class from the records of the classes in each image."""
    found: dict[int, list[tuple[int, Floats, NDArray[np.bool_], NDArray[np.bool_]]]] = {}
    objects: dict[int, Floats] = {}
    for image, classes in enumerate(matches):
        for each in classes:
            objects.setdefault(each.label, np.zeros(len(matches)))[image] += each.num_objects
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


def average_precisions(table: ClassTable, weights: Floats) -> Floats:
    """Return the average precision of one class, (draws, thresholds); NaN where a draw has no object of it.

    ``weights`` are how often each image counts, (draws, images).
    """
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
    """Return the mean over 101 recalls of the best precision at that recall or a higher one, (draws,).

    ``hits`` are how often each right detection counts, (draws, right); ``numbers`` those of all detections up to it.
    """
    if not hits.shape[1]:
        return np.zeros(len(hits))
    right = np.cumsum(hits, axis=1)
    precision = right / (numbers + _TINY)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = right / np.maximum(totals, _TINY)[:, None]
    reached = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    gained = np.diff(reached, axis=1, prepend=0)
    area: Floats = (best * gained).sum(axis=1) / len(RECALLS)
    return area
