"""Boxes drawn into pictures in the colours of their classes, and differences between two predictions, for display."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from senseapp.core.texts import plural
from senseapp.metrics.base import AnswerDrop
from senseapp.metrics.detection import MAP
from senseapp.metrics.detection.detections import objects_of, sure_detections
from senseapp.metrics.detection.matching import ClassRecord, match_image
from senseapp.metrics.detection.rules import FOUND, SURE_SCORE
from senseapp.metrics.intervals import proportion_interval
from senseapp.metrics.predictions import Columns
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.base import AnswerChanges
from senseapp.tasks.segmentation.display import Colour

_LEAST_SIDE = 160  # pixels: smaller pictures are enlarged, so that a line is thin beside an object


def boxes_drawn(picture: NDArray[np.uint8], boxes: NDArray[np.float64], labels: Sequence[int]) -> NDArray[np.uint8]:
    """Return a picture, RGB (H, W, 3), enlarged where it is small, with boxes (n, 4) in its pixels."""
    factor = max(1, -(-_LEAST_SIDE // min(picture.shape[:2])))
    image = Image.fromarray(picture)
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    draw, width = ImageDraw.Draw(image), max(1, min(image.size) // 80)
    for box, label in zip(np.asarray(boxes).reshape(-1, 4) * factor, labels, strict=True):
        left, top, right, bottom = (float(side) for side in box)
        if right >= left and bottom >= top:
            around = left - width, top - width, right + width, bottom + width
            draw.rectangle(around, outline="black", width=3 * width)
            draw.rectangle((left, top, right, bottom), outline=colour_of(label), width=width)
    return np.asarray(image)


def colour_of(label: int) -> Colour:
    """Return the colour of a class: a bright one."""
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618 % 1.0, 0.75, 1.0)  # neighbours differ
    return round(255 * red), round(255 * green), round(255 * blue)


def changes_of(before: Columns, after: Columns, targets: PerImage | None) -> AnswerChanges:
    """Return the changes; an image is changed where an object is. See :meth:`senseapp.tasks.Task.answer_changes`.

    Sure detections of both models are paired as by the F1 of :mod:`senseapp.metrics.detection`.
    """
    found = [
        match_image(sure_detections(new), objects_of(sure_detections(old), 0.0), thresholds=(FOUND,))
        for old, new in zip(before, after, strict=True)
    ]
    counts = [[sum(column) for column in zip((0, 0, 0), *map(_counts, each), strict=True)] for each in found]
    there, lost, new = torch.tensor(counts).reshape(-1, 3).T
    return AnswerChanges(
        changed=(lost > 0) | (new > 0),
        damage=lost.double() + new.double(),
        said=_said(int(there.sum()), int(lost.sum()), int(new.sum())),
        captions=[
            f"{lost} of {plural(there, 'object')} lost or moved{f', {new} new' if new else ''}"
            for there, lost, new in counts
        ],
        class_drops=partial(_lost_of_classes, found)
        if targets is None
        else partial(MAP.of_classes, MAP.moments(before, after, targets)),
        measure="objects found as before" if targets is None else "average precision (mAP@.5:.95)",
    )


def _counts(each: ClassRecord) -> tuple[int, int, int]:
    """Return the objects of the original model, those lost or moved, and those that only the other model sees."""
    same = int(each.right.sum())
    return each.num_objects, each.num_objects - same, len(each.scores) - same


def _lost_of_classes(found: Sequence[Sequence[ClassRecord]], confidence: float) -> Sequence[AnswerDrop]:
    """Return the share of each class's objects that is lost or moved."""
    drops = []
    for label in sorted({each.label for classes in found for each in classes if each.num_objects}):
        counts = [_counts(each) for classes in found for each in classes if each.label == label and each.num_objects]
        total, lost, _ = map(sum, zip(*counts, strict=True))
        low, high = proportion_interval(lost, total, confidence)
        drops.append(AnswerDrop(index=label, num_images=len(counts), drop=lost / total, low=low, high=high))
    return drops


def _said(total: int, lost: int, new: int) -> str:
    if not total:
        extra = f"; the compressed model sees {plural(new, 'object')}" if new else ""
        return f"The original model is sure of no object (a score of at least {SURE_SCORE:g}){extra}."
    more = f", and {new:,} {'is' if new == 1 else 'are'} new" if new else ""
    return f"Of {plural(total, 'object')}, {lost:,} {'is' if lost == 1 else 'are'} lost or moved{more}."
