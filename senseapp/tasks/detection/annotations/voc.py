"""Boxes of one picture in an XML file, as Pascal VOC writes it: corners in pixels, classes by name.

A parser that knows no entities reads it, so that a small file cannot grow.

Source: Everingham et al. (2010), The Pascal Visual Object Classes challenge, and its development kit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, NoReturn
from xml.parsers import expat

from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.detection.annotations.boxes import MOST_BOXES, PictureBoxes

_MOST_BYTES = 4_000_000  # 5,000 objects of 500 bytes, and more
_DEEPEST = 12  # the format is nested four deep, five with parts of a body
_LONGEST = 200  # letters of a number or of a name
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_READ = ("name", "difficult", "width", "height", *(f"bndbox/{side}" for side in _CORNERS))
_OBJECT, _SIZE = ("annotation", "object"), ("annotation", "size")


class _Fields:
    """Collects the texts that lie in ``object`` and ``size`` while expat reads."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.objects: list[dict[str, str]] = []
        self.size: dict[str, str] = {}
        self.kept: list[tuple[dict[str, str], str]] = []  # where the text of each open element goes

    def start(self, name: str, _: object) -> None:
        self.path.append(name[:_LONGEST])
        if len(self.path) > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        if tuple(self.path) == _OBJECT:
            self.objects.append({})
            if len(self.objects) > MOST_BOXES:
                raise ValueError(f"more than {MOST_BOXES:,} objects")
        place, key = tuple(self.path[:2]), "/".join(self.path[2:])
        fields = self.objects[-1] if place == _OBJECT else self.size if place == _SIZE else {}
        self.kept.append((fields if key in _READ else {}, key))

    def end(self, _: str) -> None:
        self.path.pop()
        self.kept.pop()

    def text(self, letters: str) -> None:
        fields, key = self.kept[-1]
        fields[key] = (fields.get(key, "") + letters)[: _LONGEST + 1]

    @staticmethod
    def refuse(*_: object) -> NoReturn:
        raise ValueError("a document type or an entity, which a file of boxes has no use for")


def told_by(_: Listing, contents: Iterable[bytes]) -> tuple[AnnotationFiles, Literal["unknown"]]:
    """Return the classes in some files of a set."""
    used: Counter[str] = Counter()
    for content in contents:
        with suppress(ValueError):  # its picture is left out with the reason once it is drawn
            used.update({*read_voc(content).names})
    names = tuple(sorted(used))
    counts = {number: used[name] for number, name in enumerate(names)}
    return AnnotationFiles(names=names, used=counts, numbered=False), "unknown"


def read_voc(content: bytes) -> PictureBoxes:
    """Return the boxes in a file; those marked as difficult are never missed. Raises ValueError where it is damaged."""
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{len(content) / 1e6:.0f} MB, and an XML file of boxes may have {_MOST_BYTES / 1e6:.0f} MB")
    fields, parser = _Fields(), expat.ParserCreate()
    parser.StartElementHandler = fields.start
    parser.EndElementHandler = fields.end
    parser.CharacterDataHandler = fields.text
    parser.StartDoctypeDeclHandler = fields.refuse
    parser.EntityDeclHandler = fields.refuse
    parser.ExternalEntityRefHandler = fields.refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML ({error})") from None
    boxes = [[_number(each, f"bndbox/{side}", "an object") for side in _CORNERS] for each in fields.objects]
    names = [each.get("name", "").strip() for each in fields.objects]
    if not all(0 < len(name) <= _LONGEST for name in names):
        raise ValueError("an object without a name")
    # Pixels are counted from 1, and both corners belong to the box.
    boxes = [[left - 1, top - 1, right, bottom] for left, top, right, bottom in boxes]
    width, height = (_number(fields.size, key, "a size") if fields.size else 0.0 for key in ("width", "height"))
    if not (math.isfinite(width) and math.isfinite(height)):
        raise ValueError("a size that is not finite")
    return PictureBoxes.of(
        boxes,
        names=names,
        crowd=[each.get("difficult", "").strip() == "1" for each in fields.objects],
        size=(int(width), int(height)) if width and height else None,
    )


def _number(found: dict[str, str], key: str, what: str) -> float:
    name = key.rpartition("/")[2]
    if key not in found:
        raise ValueError(f"{what} without {name}")
    try:
        return float(found[key][:_LONGEST])
    except ValueError:
        raise ValueError(f"{name} must be a number, got {found[key][:40]!r}") from None
