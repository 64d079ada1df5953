"""Boxes in COCO files: left, top, width and height in pixels of the stored picture."""

from __future__ import annotations

from collections.abc import Sequence

from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.coco import PictureSize, Written, find_coco
from senseapp.tasks.detection.annotations.boxes import MOST_CLASSES, PictureBoxes, check_box

_FIRST = ("instances", "coco", "annotations", "boxes", "labels")
"""Parts of names of files that are read first."""


def find_boxes(listing: Listing) -> AnnotationFiles | None:
    """Return the boxes of the first file that lists pictures which are there; see :func:`find_coco`."""
    return find_coco(listing, _boxes_of, first=_FIRST, part="bbox", check=_box, most=MOST_CLASSES)


def _boxes_of(written: Sequence[Written], size: PictureSize) -> PictureBoxes:
    labels = [each["category_id"] for each in written]
    crowd = [bool(each.get("iscrowd", False)) for each in written]
    return PictureBoxes.of(list(map(_box, written)), labels=labels, crowd=crowd, size=size)


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
