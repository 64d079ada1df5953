"""Average precision over all images from their records, for any weights of the images, such as bootstrap draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.metrics.detection.matching import ClassRecord, Floats, unpacked
from senseapp.metrics.detection.rules import NUM_RECALLS, THRESHOLDS
from senseapp.metrics.jackknife import Drop, jackknife_weights
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


def average_precisions(table: ClassTable, weights: Floats, *, smooth: bool = False) -> Floats:
    """Return the average precision of one class, (draws, thresholds); NaN where a draw has no object of it.

    ``weights`` are how often each image counts, (draws, images). Where ``smooth``, precision is averaged over all
    recalls and not over 101, which would round what one image changes.
    """
    totals = weights @ table.num_objects  # (draws,)
    kinds = [kind.tobytes() for kind in np.stack([table.right, table.wrong], axis=1)]
    alike = [kinds.index(kind) for kind in kinds]  # the first threshold with the same outcomes, (thresholds,)
    found = np.zeros((len(weights), len(kinds)))
    step = max(1, _DRAWS_AT_ONCE // max(1, len(table.images)))
    for start in range(0, len(weights), step):
        drawn = slice(start, start + step)
        each = weights[drawn][:, table.images]  # (draws, n)
        everything = np.cumsum(each, axis=1)
        for row in sorted(set(alike)):
            right, counted = table.right[row], table.right[row] | table.wrong[row]
            numbers = everything if counted.all() else np.cumsum(each * counted, axis=1)
            found[drawn, row] = _area(each[:, right], numbers[:, right], totals[drawn], smooth=smooth)
    found[totals == 0] = np.nan
    return found[:, alike]


def _area(hits: Floats, numbers: Floats, totals: Floats, *, smooth: bool) -> Floats:
    """Return the mean over recalls of the best precision at that recall or a higher one, (draws,).

    ``hits`` are how often each right detection counts, (draws, right); ``numbers`` those of all detections up to it.
    """
    if not hits.shape[1]:
        return np.zeros(len(hits))
    right = np.cumsum(hits, axis=1)
    precision = right / (numbers + _TINY)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    if smooth:
        over_all: Floats = (best * hits).sum(axis=1) / np.maximum(totals, _TINY)
        return over_all
    recall = right / np.maximum(totals, _TINY)[:, None]
    reached = np.searchsorted(RECALLS, recall.ravel(), side="right").reshape(recall.shape)
    gained = np.diff(reached, axis=1, prepend=0)
    area: Floats = (best * gained).sum(axis=1) / len(RECALLS)
    return area


def mean_average_precision(tables: dict[int, ClassTable], weights: Floats, *, smooth: bool = False) -> Floats:
    """Return the mean over thresholds and over the classes that have an object, (draws,); NaN without any."""
    if not tables:
        return np.full(len(weights), np.nan)
    each = np.stack([average_precisions(table, weights, smooth=smooth).mean(axis=1) for table in tables.values()])
    known = ~np.isnan(each)
    counts = known.sum(axis=0)
    sums = np.where(known, each, 0.0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(len(weights), np.nan), where=counts > 0)
    return means


def precision_drop(before: dict[int, ClassTable], after: dict[int, ClassTable], number: int, *, own: bool) -> Drop:
    """Return what ``number`` images say about the drop of mean average precision.

    ``own`` says that the objects are the original model's boxes, of which it finds all: where there is none, it loses
    none. What is smooth averages precision over all recalls.
    """
    ones, left_out = np.ones((1, number)), jackknife_weights(number)
    empty = 1.0 if own else math.nan
    value, compressed = (_or(empty, mean_average_precision(side, ones)) for side in (before, after))
    kept, left = (
        _or(empty, mean_average_precision(side, np.concatenate([ones, left_out]), smooth=True))
        for side in (before, after)
    )
    whole = float(value[0]) or 1.0
    there = [table.num_objects for table in after.values() if table.num_objects.any()]
    # what an object takes from the mean that is lost at random: its share of the class, and that of the mean
    parts = [each * (whole / (len(there) * each.sum())) for each in there] or [np.full(number, whole / number)]
    counts = np.array([each.sum() for each in there] or [number])
    lost = whole / (len(counts) * counts)
    mean, square, cube = (float((counts * lost**power).sum() / counts.sum()) for power in (1, 2, 3))
    return Drop(
        estimate=float(value[0] - compressed[0]),
        smooth=float(kept[0] - left[0]),
        rounded=_rounded_up(before, float(kept[0])) - _rounded_up(after, float(left[0])),
        without=(kept - left)[1:],
        smallest=(mean, square, cube),
        shares=np.sum(parts, axis=0),
        losing=_losing(before, after, number),
        rounding=(1 if own else 2) / (12 * NUM_RECALLS**2 * len(counts)),  # each class by up to half a recall
        number=number,
    )


def _losing(before: dict[int, ClassTable], after: dict[int, ClassTable], number: int) -> NDArray[np.bool_]:
    """Return whether fewer objects of a class are found on each image at the least overlap, (images,)."""
    found = np.zeros(number, dtype=np.bool_)
    for label in before.keys() & after.keys():
        first, second = (
            np.bincount(each.images[each.right[0]], minlength=number) for each in (before[label], after[label])
        )
        found |= second < first
    return found


def _rounded_up(tables: dict[int, ClassTable], value: float) -> float:
    """Return by how much 101 recalls round up a mean average precision of ``value`` on average.

    Between two recalls precision is taken at the higher one, half of whose fall is lost; the recalls 0 and 1 are exact.
    """
    there = [(each.right.sum(axis=1), each.num_objects.sum()) for each in tables.values() if each.num_objects.any()]
    whole = np.mean([(found == total).mean() for found, total in there]) if there else value * 2 - 1
    return ((1 + float(whole)) / 2 - value) / NUM_RECALLS


def _or(value: float, values: Floats) -> Floats:
    """Return ``values`` with ``value`` in place of NaN."""
    return np.where(np.isnan(values), value, values)
