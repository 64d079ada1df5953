"""Boxes of one picture in a text file, as YOLO writes it: class, centre and size as shares of the picture's sides.

Lines with more corners are polygons, of which the box around them is taken.

Source: https://docs.ultralytics.com/datasets/detect and https://docs.ultralytics.com/datasets/segment.
"""

from __future__ import annotations

import re

from senseapp.tasks.annotations import Listing
from senseapp.tasks.detection.annotations.boxes import MOST_BOXES, MOST_CLASSES, PictureBoxes, class_number

_MOST_BYTES = 4_000_000  # 5,000 boxes, or outlines, of 800 bytes
_BOX = 5  # numbers of a line with a box
_SLACK = 0.01  # of a side: tools round corners to just outside of the picture
_LISTS = ("classes.txt", "obj.names", "labels.txt", "names.txt", "predefined_classes.txt")
_NO_BOXES = (*_LISTS, "readme.txt", "train.txt", "val.txt", "test.txt", "requirements.txt")
_ENTRY = re.compile(r"^\s*(?:-|(\d+)\s*:)\s*(.+?)\s*$")


def is_boxes_name(path: str) -> bool:
    """Return whether a file of this name may hold boxes of a picture, and no list of pictures or classes."""
    return path.rpartition("/")[2].casefold() not in _NO_BOXES


def read_yolo(content: bytes) -> PictureBoxes:
    """Return the boxes in a file; an empty one says that there are none. Raises ValueError where it is damaged."""
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{len(content) / 1e6:.0f} MB, and a text file of boxes may have {_MOST_BYTES / 1e6:.0f} MB")
    try:
        lines = [line.split() for line in content.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError("no text file") from None
    rows = [(number, line) for number, line in enumerate(lines, 1) if line]
    if len(rows) > MOST_BOXES:
        raise ValueError(f"{len(rows):,} lines, and a picture may have up to {MOST_BOXES:,} boxes")
    found = [_row(line, number) for number, line in rows]
    return PictureBoxes.of([box for box, _ in found], labels=[label for _, label in found], relative=True)


def _row(line: list[str], number: int) -> tuple[list[float], int]:
    try:
        label, values = class_number(line[0]), [float(each) for each in line[1:]]
    except ValueError:
        raise ValueError(f"line {number} is not a class number with coordinates") from None
    if not all(-_SLACK <= value <= 1 + _SLACK for value in values):
        raise ValueError(f"line {number} has a coordinate outside of 0 to 1, the share of a side")
    if len(line) == _BOX:
        x, y, width, height = values
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2], label
    if len(values) >= 6 and len(values) % 2 == 0:  # a polygon
        return [min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])], label
    raise ValueError(f"line {number} has {len(line)} numbers: a box has 5, a polygon 7 or more, an odd number")


def find_names(listing: Listing) -> tuple[str, ...]:
    """Return the class names, by number, that a list or a YAML file of a set says; empty where none does."""
    for path in sorted(listing.others, key=lambda path: (path.count("/"), path)):
        name = path.rpartition("/")[2].casefold()
        if name in _LISTS:
            return _named(dict(enumerate(_text(listing, path).splitlines())))
        if name.endswith((".yaml", ".yml")):
            found = names_in_yaml(_text(listing, path))
            if found:
                return found
    return ()


def names_in_yaml(text: str) -> tuple[str, ...]:
    """Return the ``names`` of a YAML file that Ultralytics reads: a list in brackets, with dashes, or by number.

    >>> names_in_yaml("names: ['cat', dog]")
    ('cat', 'dog')
    """
    before, found, after = text.partition("names:")
    if not found or (before and not before.endswith("\n")):
        return ()
    first = after.split("\n", 1)[0].strip()
    if first.startswith("["):
        inside = after.partition("[")[2].partition("]")[0]
        return _named(dict(enumerate(each.strip().strip("'\"") for each in inside.split(","))))
    names: dict[int, str] = {}
    for line in after.splitlines()[1:]:
        entry = _ENTRY.match(line)
        if entry is None:
            break
        number = int(entry[1]) if entry[1] and len(entry[1]) < 6 else len(names)
        names[number] = entry[2].strip("'\"")
    return _named(names)


def _named(names: dict[int, str]) -> tuple[str, ...]:
    kept = {number: name.strip() for number, name in names.items() if name.strip() and number < MOST_CLASSES}
    return tuple(kept.get(number, "") for number in range(max(kept, default=-1) + 1))


def _text(listing: Listing, path: str) -> str:
    return listing.read(path)[:_MOST_BYTES].decode("utf-8-sig", errors="replace")
