"""Differences between two detectors' predictions on the same images, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from senseapp.core.texts import plural
from senseapp.metrics.base import Moments
from senseapp.metrics.detection import MAP, annotated
from senseapp.metrics.detection.detections import detections_of
from senseapp.metrics.detection.matching import Floats, Objects, match
from senseapp.metrics.detection.rules import AREAS, FOUND, SURE_SCORE
from senseapp.metrics.intervals import proportion_interval
from senseapp.metrics.predictions import Columns
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.base import AnswerChanges, AnswerDrop


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChange:
    """What became of the sure detections of one image: which of the original's are kept, which of the new are not new.

    Attributes:
        before, after: detections, (n, 6) as score, class and box, of both models.
        kept, known: which of each have a partner of the same class that overlaps by half.
    """

    before: Floats
    after: Floats
    kept: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @property
    def num_lost(self) -> int:
        """Objects of the original that are lost or moved."""
        return int((~self.kept).sum())

    @property
    def num_new(self) -> int:
        """Objects that only the compressed model sees."""
        return int((~self.known).sum())


def image_change(before: Floats, after: Floats) -> ImageChange:
    """Pair the sure detections of both models, as the F1 of :mod:`senseapp.metrics.detection` does."""
    old, new = (each[each[:, 0] >= SURE_SCORE] for each in (before, after))
    kept, known = np.zeros(len(old), dtype=bool), np.zeros(len(new), dtype=bool)
    for label in np.intersect1d(old[:, 1], new[:, 1]).tolist():
        ours, theirs = np.flatnonzero(old[:, 1] == label), np.flatnonzero(new[:, 1] == label)
        objects = Objects.of(old[ours, 2:], old[ours, 1].astype(np.int64))
        partners = match(new[theirs, 2:], objects, (FOUND,), AREAS["all"]).partners[0]
        known[theirs] = partners >= 0
        kept[ours[partners[partners >= 0]]] = True
    return ImageChange(before=old, after=new, kept=kept, known=known)


def changes_of(before: Columns, after: Columns, targets: PerImage | None) -> AnswerChanges:
    """Return the changes; an image is changed where an object is. See :meth:`senseapp.tasks.Task.answer_changes`."""
    found = [
        image_change(*(detections_of(each.parts["candidates"][index]) for each in (before, after)))
        for index in range(len(before))
    ]
    lost = torch.tensor([each.num_lost for each in found])
    new = torch.tensor([each.num_new for each in found])
    total = sum(len(each.before) for each in found)
    return AnswerChanges(
        changed=(lost > 0) | (new > 0),
        damage=lost.double() + new.double(),
        said=_said(total, int(lost.sum()), int(new.sum())),
        captions=[_caption(each) for each in found],
        class_drops=partial(_lost_of_classes, found)
        if targets is None
        else partial(_precision_of_classes, MAP.moments(before, after, targets), targets),
        measure="objects found as before" if targets is None else "average precision (mAP@.5:.95)",
    )


def _lost_of_classes(found: Sequence[ImageChange], confidence: float) -> Sequence[AnswerDrop]:
    """Return the share of each class's objects that is lost or moved."""
    labels = np.concatenate([each.before[:, 1] for each in found]).astype(np.int64)
    lost = np.concatenate([~each.kept for each in found])
    images = np.concatenate([np.full(len(each.before), place) for place, each in enumerate(found)])
    drops = []
    for label in np.unique(labels).tolist():
        own = labels == label
        low, high = proportion_interval(int(lost[own].sum()), int(own.sum()), confidence)
        drop = float(lost[own].mean())
        drops.append(AnswerDrop(index=label, num_images=len(np.unique(images[own])), drop=drop, low=low, high=high))
    return drops


def _precision_of_classes(moments: Moments, targets: PerImage, confidence: float) -> Sequence[AnswerDrop]:
    """Return what each class loses of its average precision."""
    present = [set(annotated(each).labels.tolist()) for each in targets]
    return [
        AnswerDrop(
            index=each.label,
            num_images=sum(each.label in labels for labels in present),
            drop=each.delta,
            low=each.low,
            high=each.high,
        )
        for each in MAP.of_classes(moments, confidence)
    ]


def _said(total: int, lost: int, new: int) -> str:
    if not total:
        extra = f"; the compressed model sees {plural(new, 'object')}" if new else ""
        return f"The original model is sure of no object (a score of at least {SURE_SCORE:g}){extra}."
    more = f", and {new:,} {'is' if new == 1 else 'are'} new" if new else ""
    return f"Of {plural(total, 'object')}, {lost:,} {'is' if lost == 1 else 'are'} lost or moved{more}."


def _caption(change: ImageChange) -> str:
    new = f", {change.num_new} new" if change.num_new else ""
    return f"{change.num_lost} of {plural(len(change.before), 'object')} lost or moved{new}"
