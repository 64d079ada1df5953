"""Boxes of all pictures in one JSON file, as COCO writes it: left, top, width and height in pixels.

Source: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from senseapp.core.texts import plural, printable
from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.detection.annotations.boxes import PictureBoxes, class_number

_MOST_BYTES = 64_000_000  # the file of COCO's validation pictures has 20 MB
_MOST_FILES = 8
_MOST_PICTURES = 500_000
_FIRST = ("instances", "coco", "annotations", "boxes", "labels")
"""Parts of names of files that are read first."""


def find_coco(listing: Listing, paths: Sequence[str]) -> AnnotationFiles | None:
    """Return the boxes of the first file that lists pictures which are there; None where none of them does.

    Raises:
        ValueError: a file that a person chose, or the only one of the kind, is damaged.
    """
    chosen = bool(listing.chosen)
    ordered = sorted(paths, key=lambda path: (not any(part in path.casefold() for part in _FIRST), path))[:_MOST_FILES]
    damaged: list[ValueError] = []
    for path in ordered:
        try:
            found = _read(listing, path, choices=tuple(sorted(paths)))
        except ValueError as error:
            damaged.append(ValueError(f"{printable(path)}: {error}"))
            continue
        if found is not None and (found.parsed or chosen):
            return found
    if damaged:
        raise damaged[0]
    return None


def _read(listing: Listing, path: str, *, choices: tuple[str, ...]) -> AnnotationFiles | None:
    """Return what a file says; None where it is no file of boxes."""
    content = parsed_json(listing.read(path))
    if not isinstance(content, Mapping) or not {"images", "annotations"} <= content.keys():
        if listing.chosen:
            raise ValueError('a COCO file has the keys "images" and "annotations"')
        return None
    images, boxes = _images(content["images"]), _boxes(content["annotations"])
    names = [name for name, _ in images.values()]
    pictures = listing.named(names, beside=path)
    parsed = {}
    for (number, (_, size)), picture in zip(images.items(), pictures, strict=True):
        if picture is not None:
            rows = boxes.get(number, [])
            parsed[picture] = PictureBoxes.of(
                [row[0] for row in rows], labels=[row[1] for row in rows], crowd=[row[2] for row in rows], size=size
            )
    lost = len(names) - len(parsed)
    notes = [f"{printable(path)} lists {plural(lost, 'picture')} that are not there."] if lost else []
    strangers = sum(len(rows) for number, rows in boxes.items() if number not in images)
    if strangers:
        notes.append(f"{plural(strangers, 'box', 'boxes')} of pictures that {printable(path)} does not list left out.")
    return AnnotationFiles(
        parsed=parsed, names=_names(content.get("categories", [])), notes=tuple(notes), choices=choices
    )


def parsed_json(content: bytes) -> Any:
    """Return the content of a JSON file; raises ValueError with words where it is too large, deep or damaged."""
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{len(content) / 1e6:.0f} MB, and a file of boxes may have up to {_MOST_BYTES / 1e6:.0f} MB")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply for a file of boxes") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"no JSON ({str(error)[:120]})") from None


def _images(value: object) -> dict[object, tuple[str, tuple[int, int] | None]]:
    """Return name and size of each picture by its id."""
    if not isinstance(value, list) or len(value) > _MOST_PICTURES:
        raise ValueError(f'"images" must be a list of up to {_MOST_PICTURES:,} pictures')
    found: dict[object, tuple[str, tuple[int, int] | None]] = {}
    for each in value:
        number, name = _required(each, "id", "a picture"), _required(each, "file_name", "a picture")
        if not isinstance(name, str) or not isinstance(number, int | str):
            raise ValueError("a picture needs an id and a file_name that is a text")
        if number in found:
            raise ValueError(f"two pictures with the id {str(number)[:40]!r}")
        size = each.get("width"), each.get("height")
        whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size)
        found[number] = name, (size if whole else None)
    return found


def _boxes(value: object) -> dict[object, list[tuple[list[float], int, bool]]]:
    """Return box, class and whether it is a crowd, of each annotation, by the id of the picture."""
    if not isinstance(value, list):
        raise ValueError('"annotations" must be a list')
    found: dict[object, list[tuple[list[float], int, bool]]] = {}
    for each in value:
        number = _required(each, "image_id", "an annotation")
        box = _required(each, "bbox", "an annotation")
        if not isinstance(number, int | str):
            raise ValueError("an image_id that is neither a number nor a text")
        if not isinstance(box, list) or len(box) != 4 or not all(_is_number(side) for side in box):
            raise ValueError("a bbox must have four numbers: left, top, width and height")
        left, top, width, height = map(float, box)
        label = class_number(_required(each, "category_id", "an annotation"))
        row = [left, top, left + width, top + height], label, bool(each.get("iscrowd", False))
        found.setdefault(number, []).append(row)
    return found


def _names(value: object) -> tuple[str, ...]:
    """Return the class names by id; ids that are not used have an empty name."""
    if not isinstance(value, list):
        raise ValueError('"categories" must be a list')
    named = {class_number(_required(each, "id", "a category")): str(each.get("name", "")) for each in value}
    return tuple(named.get(number, "") for number in range(max(named, default=-1) + 1))


def _required(value: object, key: str, what: str) -> Any:
    if not isinstance(value, Mapping) or key not in value:
        raise ValueError(f"{what} without {key}")
    return value[key]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
