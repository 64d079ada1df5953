"""Metrics of detectors: a smooth divergence that ranks layers, and average precision and F1 that prove schedules.

Predictions are :class:`~senseapp.metrics.predictions.Columns`: ``rows`` (N, R, 6 + K), as
:mod:`senseapp.metrics.detection.rows` describes them; ``num_rows`` (N,), of which these are a part; and ``candidates``,
the boxes of each image before non-maximum suppression.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from senseapp.core.errors import InvalidInput
from senseapp.core.texts import plural
from senseapp.metrics.base import Metric, MetricChange, Moments
from senseapp.metrics.detection.matching import (
    Floats,
    Objects,
    average_precisions,
    detections_of,
    found_objects,
    match_image,
    objects_of,
    packed,
    sure_detections,
    tables_of,
)
from senseapp.metrics.detection.rows import FOUND, LEAST_SCORE, SURE_SCORE, THRESHOLDS, divergence
from senseapp.metrics.predictions import Columns, Predictions
from senseapp.metrics.records import (
    HARM,
    SHARE,
    ClassMeanMetric,
    ClassValues,
    Record,
    RecordMetric,
    of_divergence,
    sides_of,
)

if TYPE_CHECKING:
    from torch import Tensor

TASK = "detection"


def _divergence(before: Columns, after: Columns, _targets: object) -> tuple[Tensor, ...]:
    """Return the terms of each image's divergence; rows that were left out count as those that were not."""
    rows = before.parts["rows"]
    share = before.parts["num_rows"].double() / rows.shape[1]
    return of_divergence(divergence(rows, after.parts["rows"]).double() * share)


@dataclass(frozen=True, kw_only=True)
class DetectionRecordMetric(RecordMetric):
    """A metric of detections against objects: annotated ones, or the original model's from ``least_score`` on."""

    least_score: float = SURE_SCORE

    @abstractmethod
    def image_record(self, detections: Floats, objects: Objects) -> Record:
        """Return the record of one image."""

    def detections(self, prediction: Mapping[str, Any]) -> Floats:
        """Return the detections of one image that count."""
        return detections_of(prediction["candidates"])

    def record(self, predictions: Any, index: int, targets: Sequence[Objects]) -> Record:
        """Return the record of one image against its objects."""
        return self.image_record(self.detections(predictions[index]), targets[index])

    def check(self, baseline_output: Any, output: Any, targets: Any) -> None:
        """Refuse numbers of images that differ, and missing annotations."""
        counts = {len(baseline_output), len(output), len(output) if targets is None else len(targets)}
        if len(counts) > 1:
            raise InvalidInput(f"Predictions and annotations must be of the same images, got {sorted(counts)}.")
        if self.needs_labels and targets is None:
            raise InvalidInput(f"The metric {self.name} needs annotated images. Choose one that needs no labels.")

    def moments(self, baseline_output: Predictions, output: Predictions, targets: Any) -> tuple[float, ...]:
        """Return the number of images and the records of each, before and after."""
        if not self.needs_labels:
            targets = [objects_of(self.detections(each), self.least_score) for each in baseline_output]
        elif targets is not None:
            targets = [annotated(each) for each in targets]
        return super().moments(baseline_output, output, targets)


def annotated(target: Any) -> Objects:
    """Return the objects of one image, as the task's annotations say them."""
    return Objects.of(target["boxes"], target["labels"], target.get("crowd"))


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(ClassMeanMetric, DetectionRecordMetric):
    """Mean average precision over classes and thresholds, overlaps from which a box is right, by the rules of COCO.

    Objects count whose ``area`` is one of ``AREAS``, in pixels of the network's input.
    """

    thresholds: tuple[float, ...] = THRESHOLDS
    area: str = "all"

    def image_record(self, detections: Floats, objects: Objects) -> Record:
        """Return the matches of each class."""
        return packed(match_image(detections, objects, area=self.area, thresholds=self.thresholds))

    def class_values(self, records: Sequence[Record], counts: Floats) -> dict[int, ClassValues]:
        """Return the average precision of each class that has an object, a mean over thresholds."""
        return {
            label: ClassValues(int((table.num_objects > 0).sum()), average_precisions(table, counts).mean(axis=1))
            for label, table in tables_of(records, len(self.thresholds)).items()
        }

    def nothing_lost(self, before: Sequence[Record], after: Sequence[Record]) -> bool:
        """Return whether every object that was found still is, at the least overlap, wherever its box moved."""
        first, second = (found_objects(side, len(self.thresholds)) for side in (before, after))
        return all(second[key] >= count for key, count in first.items())

    def values_of(self, records: Sequence[Record], counts: Floats) -> Floats:
        """Return the mean average precision for each row of ``counts``.

        Without any object it is unknown, NaN; but of the original model's own boxes there is then none to lose, 1.
        """
        found = super().values_of(records, counts)
        return found if self.needs_labels else np.where(np.isnan(found), 1.0, found)


@dataclass(frozen=True, kw_only=True)
class ObjectsKept(DetectionRecordMetric):
    """F1 of the sure detections against those of the original model, at half an overlap and the same class.

    Sure are scores from 0.3 on, or from that on which a file has of its own.
    """

    least_score: float = 0.0

    def detections(self, prediction: Mapping[str, Any]) -> Floats:
        """Return the sure detections."""
        return sure_detections(prediction)

    def image_record(self, detections: Floats, objects: Objects) -> Record:
        """Return how many objects there are, how many are found, and how many of these are the same."""
        matched = sum(int(each.right.sum()) for each in match_image(detections, objects, thresholds=(FOUND,)))
        return (float(len(objects.labels)), float(len(detections)), float(matched))

    def values_of(self, records: Sequence[Record], counts: Floats) -> Floats:
        """Return F1 for each row of ``counts``; 1 where neither model finds anything."""
        there, found, same = (counts @ np.asarray(records, dtype=np.float64).reshape(-1, 3)).T
        values: Floats = np.divide(2 * same, there + found, out=np.ones_like(same), where=there + found > 0)
        return values

    def kept_text(self, change: MetricChange) -> str:
        """Return how many of the original's objects are found as before."""
        there, found, same = object_counts(change.moments)
        if not there + found:
            return "find no object that they are sure of, as before"
        new = f", and {found - same:,} are new" if found > same else ""
        return f"keep {same:,} of {plural(there, 'object')} ({there - same:,} lost or moved{new})"


def object_counts(moments: Moments) -> tuple[int, int, int]:
    """Return the objects of the original model, those of the compressed one, and how many are the same."""
    _, after = sides_of(moments)
    there, found, same = np.asarray(after, dtype=np.float64).reshape(-1, 3).sum(axis=0).astype(int).tolist()
    return there, found, same


DIVERGENCE = Metric(
    **HARM,
    of_images=_divergence,
    name="detection_kl",
    task=TASK,
    term="Divergence of boxes and classes",
    axis_title="Harm to boxes and classes",
    help="KL divergence of the classes plus score · (1 − IoU) of the box, summed over the anchors of an image, before "
    "non-maximum suppression. Needs no labels. 0: all stays as it is; up to 0.5 hardly shows; 15 and more is much.",
    notable=0.5,
)
OBJECTS = ObjectsKept(
    **SHARE,
    name="objects_f1",
    task=TASK,
    label="Objects as before",
    change_title="Objects lost, moved or new",
    term="Objects as before (F1)",
    term_change="Objects lost, moved or new",
    help=f"F1 of the boxes with a score of at least {SURE_SCORE:g}, or a file's own threshold, against those of the "
    f"original model: same class, and an overlap (IoU) of at least {FOUND:g}. Needs no labels.",
    primary=True,
    proof_only=True,
)


def _average_precision(name: str, label: str, about: str, *, agreement: bool = False, **more: Any) -> AveragePrecision:
    truth = f"with the original model's boxes of a score of at least {SURE_SCORE:g} as the truth. Needs no labels."
    boxes = f"from boxes of a score of at least {LEAST_SCORE:g}."
    return AveragePrecision(
        name=name,
        task=TASK,
        label=label,
        change_title=f"Drop in {label[0].lower()}{label[1:]}",
        help=f"Mean average precision by the rules of COCO{about}, {truth if agreement else boxes}",
        **SHARE,
        needs_labels=not agreement,
        proof_only=True,
        **more,
    )


_WHOLE, _HALF = ", the mean over overlaps from .5 to .95", " at half an overlap"
MAP = _average_precision(
    "map",
    "Detection score",
    _WHOLE,
    primary=True,
    kept="keep a detection score of {}",
    term="mAP@.5:.95",
    term_change="Drop in mAP@.5:.95",
)
MAP_50 = _average_precision("map50", "mAP@.5", _HALF, thresholds=(0.5,))
_SIZES = {"small": "below 32² pixels", "medium": "from 32² to 96² pixels", "large": "above 96² pixels"}
METRICS_BY_SIZE = tuple(
    _average_precision(
        f"map_{area}", f"mAP of {area} objects", f", of objects {size} in the network's input", area=area
    )
    for area, size in _SIZES.items()
)
AGREEMENT = _average_precision("agreement_map", "Agreement mAP@.5:.95", _WHOLE, agreement=True)
AGREEMENT_50 = _average_precision("agreement_map50", "Agreement mAP@.5", _HALF, agreement=True, thresholds=(0.5,))
DETECTION_METRICS: tuple[Metric, ...] = (MAP, MAP_50, *METRICS_BY_SIZE, OBJECTS, AGREEMENT, AGREEMENT_50, DIVERGENCE)
"""In the order in which people see them."""
