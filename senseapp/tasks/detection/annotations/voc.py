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
from xml.etree import ElementTree
from xml.parsers import expat

from senseapp.tasks.annotations import AnnotationFiles, Listing
from senseapp.tasks.detection.annotations.boxes import MOST_BOXES, PictureBoxes

_MOST_BYTES = 4_000_000  # 5,000 objects of 500 bytes, and more
_LONGEST = 200  # letters of a number or of a name


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
    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate()
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = parser.ExternalEntityRefHandler = _refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML ({error})") from None
    root = builder.close()
    objects, size = root.findall("object"), root.find("size")
    if len(objects) > MOST_BOXES:
        raise ValueError(f"more than {MOST_BOXES:,} objects")
    names = [each.findtext("name", "").strip() for each in objects]
    if not all(0 < len(name) <= _LONGEST for name in names):
        raise ValueError("an object without a name")
    boxes = []
    for each in objects:  # pixels are counted from 1, and both corners belong to the box
        left, top, right, bottom = (
            _number(each, f"bndbox/{side}", "an object") for side in ("xmin", "ymin", "xmax", "ymax")
        )
        boxes.append([left - 1, top - 1, right, bottom])
    width, height = (0.0 if size is None else _number(size, key, "a size") for key in ("width", "height"))
    if not (math.isfinite(width) and math.isfinite(height)):
        raise ValueError("a size that is not finite")
    return PictureBoxes.of(
        boxes,
        names=names,
        crowd=[each.findtext("difficult", "").strip() == "1" for each in objects],
        size=(int(width), int(height)) if width and height else None,
    )


def _refuse(*_: object) -> NoReturn:
    raise ValueError("a document type or an entity, which a file of boxes has no use for")


def _number(found: ElementTree.Element, path: str, what: str) -> float:
    text, name = found.findtext(path), path.rpartition("/")[2]
    if text is None:
        raise ValueError(f"{what} without {name}")
    try:
        return float(text[:_LONGEST])
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text[:40]!r}") from None
