"""Boxes in COCO files: left, top, width and height in pixels of the stored picture."""

from __future__ import annotations

import math

from senseapp.core.texts import plural, printable
from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.coco import CocoFile, Written, find_coco, required
from senseapp.tasks.detection.annotations.boxes import PictureBoxes, class_number

_FIRST = ("instances", "coco", "annotations", "boxes", "labels")
"""Parts of names of files that are read first."""


def find_boxes(listing: Listing) -> AnnotationFiles | None:
    """Return the boxes of the first file that lists pictures which are there; see :func:`find_coco`."""
    return find_coco(listing, lambda file: _boxes_of(file, listing), first=_FIRST, class_number=class_number)


def _boxes_of(file: CocoFile, listing: Listing) -> AnnotationFiles:
    boxes = {number: [_box(each) for each in found] for number, found in file.objects.items()}
    present, notes = file.present(listing)
    parsed = {}
    for path, number in present.items():
        rows = boxes.get(number, [])
        parsed[path] = PictureBoxes.of(
            [row[0] for row in rows],
            labels=[row[1] for row in rows],
            crowd=[row[2] for row in rows],
            size=file.pictures[number].size,
        )
    strangers = sum(len(rows) for number, rows in boxes.items() if number not in file.pictures)
    if strangers:
        left = f"{plural(strangers, 'box', 'boxes')} of pictures that {printable(file.path)} does not list left out."
        notes = (*notes, left)
    return AnnotationFiles(parsed=parsed, names=file.class_names, notes=notes)


def _box(written: Written) -> tuple[list[float], int, bool]:
    """Return left, top, right and bottom of an object, its class, and whether it is a crowd."""
    box = required(written, "bbox", "an annotation")
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(side) for side in box):
        raise ValueError("a bbox must have four numbers that are finite: left, top, width and height")
    left, top, width, height = map(float, box)
    label = class_number(required(written, "category_id", "an annotation"))
    return [left, top, left + width, top + height], label, bool(written.get("iscrowd", False))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
