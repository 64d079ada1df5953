"""Boxes in COCO files: left, top, width and height in pixels of the stored picture."""

from __future__ import annotations

from functools import partial

from senseapp.core.texts import plural, printable
from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.coco import CocoFile, Written, find_coco
from senseapp.tasks.detection.annotations.boxes import MOST_CLASSES, PictureBoxes, check_box

_FIRST = ("instances", "coco", "annotations", "boxes", "labels")
"""Parts of names of files that are read first."""


def find_boxes(listing: Listing) -> AnnotationFiles | None:
    """Return the boxes of the first file that lists pictures which are there; see :func:`find_coco`."""
    interpret = partial(_boxes_of, listing=listing)
    return find_coco(listing, interpret, first=_FIRST, part="bbox", check=_box, most=MOST_CLASSES)


def _boxes_of(file: CocoFile, listing: Listing) -> AnnotationFiles:
    present, notes = file.present(listing)
    parsed = {}
    for path, number in present.items():
        found = file.objects.get(number, ())
        parsed[path] = PictureBoxes.of(
            list(map(_box, found)),
            labels=[each["category_id"] for each in found],
            crowd=[bool(each.get("iscrowd", False)) for each in found],
            size=file.pictures[number].size,
        )
    strangers = sum(len(found) for number, found in file.objects.items() if number not in file.pictures)
    if strangers:
        left = f"{plural(strangers, 'box', 'boxes')} of pictures that {printable(file.path)} does not list left out."
        notes = (*notes, left)
    return AnnotationFiles(parsed=parsed, names=file.class_names, used=file.used(present.values()), notes=notes)


def _box(written: Written) -> list[float]:
    """Return left, top, right and bottom of an object."""
    box = written["bbox"]
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise ValueError("a bbox must have four numbers that are finite: left, top, width and height")
    left, top, width, height = map(float, box)
    corners = [left, top, left + width, top + height]
    check_box(corners)
    return corners


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # finite
