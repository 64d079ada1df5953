"""Answers drawn into pictures, as masks or boxes in the colours of their classes, and changes of boxes, for display."""

import colorsys
import io
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from senseapp.core.texts import plural
from senseapp.metrics.base import AnswerDrop
from senseapp.metrics.detection import MAP
from senseapp.metrics.detection.matching import ClassRecord, match_image, objects_of, sure_detections
from senseapp.metrics.detection.rows import FOUND, SURE_SCORE
from senseapp.metrics.intervals import proportion_interval
from senseapp.metrics.predictions import Columns
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import PerImage
from senseapp.tasks.base import AnswerChanges

Colour = tuple[int, int, int]
_SHARE = 0.55  # of the mask in what is seen
_LINE, _SQUARE, _WIDTH = 18, 12, 640  # pixels of a line, of its square and of the whole legend
_LEAST_SIDE = 160  # pixels: smaller pictures are enlarged, so that a line is thin beside an object


def palette() -> NDArray[np.uint8]:
    """Return the colour of each class number, uint8 (256, 3): that of Pascal VOC, whose background and void are black.

    Source: Everingham and Winn, The PASCAL VOC development kit, ``VOClabelcolormap``.
    """
    numbers = np.arange(VOID + 1)
    colours = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((numbers >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    colours[VOID] = 0
    return colours


def overlaid(picture: NDArray[np.uint8], classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture, RGB (H, W, 3), under the colours of ``classes`` (H', W'), uint8; class 0 darkens it."""
    height, width = picture.shape[:2]
    rows, columns = (
        (2 * np.arange(wanted) + 1) * there // (2 * wanted)
        for wanted, there in zip((height, width), classes.shape, strict=True)
    )
    return np.rint((1 - _SHARE) * picture + _SHARE * palette()[classes[np.ix_(rows, columns)]]).astype(np.uint8)


def legend(names: Sequence[tuple[int, str]], colour: Callable[[int], Colour]) -> bytes:
    """Return a PNG file with the colour and the name of each class; empty without any."""
    shown = [(number, name[:24]) for number, name in names][:24]  # a few lines
    if not shown:
        return b""
    font = ImageFont.load_default(_SQUARE)
    places, left, top, right = [], 0, 0, 0
    for number, name in shown:
        width = _LINE + round(font.getlength(name))
        if left and left + width + _LINE > _WIDTH:
            left, top = 0, top + _LINE
        places.append((left, top, number, name))
        right = max(right, left + width)
        left += width + _LINE
    image = Image.new("RGB", (right + 1, top + _LINE), "white")
    draw = ImageDraw.Draw(image)
    for left, top, number, name in places:
        draw.rectangle((left, top + 3, left + _SQUARE, top + 3 + _SQUARE), fill=colour(number), outline="grey")
        draw.text((left + _LINE, top + 2), name, fill="black", font=font)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


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


def object_changes(before: Columns, after: Columns, targets: PerImage | None) -> AnswerChanges:
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
        measure="objects found as before" if targets is None else "the detection score",
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
