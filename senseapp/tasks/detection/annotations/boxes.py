"""The boxes of one picture as its file stores them, and those of COCO and Pascal VOC.

A parser that knows no entities reads XML, so that a small file cannot grow.

Source: Everingham et al. (2010), The Pascal Visual Object Classes challenge, and its development kit.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NoReturn, Self
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from senseapp.tasks.annotations import FARTHEST, AnnotationFiles, Listing
from senseapp.tasks.coco import PictureSize, Written, find_coco

MOST_BOXES = 5_000
"""Of one picture; photographs have some tens."""
MOST_CLASSES = 10_000  # LVIS has 1,203; results keep a number for each
_MOST_XML_BYTES = 4_000_000  # 5,000 objects of 500 bytes, and more
_LONGEST_TEXT = 200  # letters of a number or of a name in XML


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureBoxes:
    """Boxes with classes.

    Attributes:
        boxes: (n, 4), as left, top, right, bottom; in pixels, or as shares of the sides where ``relative``.
        labels: class numbers as the file has them, (n,); 0 where it has names.
        names: class names, n; empty texts where the file has numbers.
        crowd: which of them are never missed: crowds, and what is marked as difficult, (n,).
        size: (width, height) that the file says the picture has; None where it says nothing.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    crowd: NDArray[np.bool_]
    relative: bool = False
    size: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        boxes: Sequence[Sequence[float]],
        *,
        labels: Sequence[int] = (),
        names: Sequence[str] = (),
        crowd: Sequence[bool] = (),
        relative: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Self:
        """Return boxes that have been checked; raises ValueError where one is none."""
        count = len(boxes)
        if count > MOST_BOXES:
            raise ValueError(f"{count:,} boxes, and a picture may have up to {MOST_BOXES:,}")
        for box in boxes:
            check_box(box)
        return cls(
            boxes=np.asarray(boxes, dtype=np.float64).reshape(-1, 4),
            labels=np.asarray(labels or [0] * count, dtype=np.int64),
            names=tuple(names) or ("",) * count,
            crowd=np.asarray(crowd or [False] * count, dtype=bool),
            relative=relative,
            size=size,
        )

    def in_pixels(self, size: tuple[int, int]) -> NDArray[np.float64]:
        """Return the boxes in pixels of the stored picture.

        Raises ValueError if the picture has another size, or a box lies outside of it.
        """
        if self.size is not None and self.size != size:
            raise ValueError(
                f"in {self.size[0]:,} × {self.size[1]:,} pixels, and the picture has {size[0]:,} × {size[1]:,}"
            )
        boxes = self.boxes * np.array([*size, *size]) if self.relative else self.boxes
        outside = np.any(boxes[:, 2:] < 0, axis=1) | np.any(boxes[:, :2] > size, axis=1)
        if outside.any():
            left, top, right, bottom = boxes[outside][0]
            raise ValueError(
                f"a box from ({left:.6g}, {top:.6g}) to ({right:.6g}, {bottom:.6g}), outside of the picture's "
                f"{size[0]:,} × {size[1]:,} pixels"
            )
        return boxes


def check_box(box: Sequence[float]) -> None:
    """Raise ValueError for a box (left, top, right, bottom) that has no area or lies nowhere."""
    if not all(math.isfinite(side) and abs(side) <= FARTHEST for side in box):
        raise ValueError("a box whose numbers are not finite or far outside of any picture")
    if box[2] < box[0] or box[3] < box[1]:
        raise ValueError(f"a box of negative size, {box[2] - box[0]:g} × {box[3] - box[1]:g}")


# ---- COCO: one JSON file for all pictures


def find_boxes(listing: Listing) -> AnnotationFiles | None:
    """Return the boxes of the first file that lists pictures which are there; see :func:`find_coco`."""
    return find_coco(listing, _boxes_of, part="bbox", check=_box, most=MOST_CLASSES)


def _boxes_of(written: Sequence[Written], size: PictureSize) -> PictureBoxes:
    labels = [each["category_id"] for each in written]
    crowd = [bool(each.get("iscrowd", False)) for each in written]
    return PictureBoxes.of(list(map(_box, written)), labels=labels, crowd=crowd, size=size)


def _box(written: Written) -> list[float]:
    """Return left, top, right and bottom of an object."""
    box = written["bbox"]
    is_box = isinstance(box, list) and len(box) == 4 and not any(isinstance(each, bool) for each in box)
    if not is_box or not all(isinstance(each, int | float) and abs(each) < 1e300 for each in box):
        raise ValueError("a bbox must have four numbers that are finite: left, top, width and height")
    left, top, width, height = map(float, box)
    corners = [left, top, left + width, top + height]
    check_box(corners)
    return corners


# ---- Pascal VOC: one XML file for each picture


def voc_classes(_: Listing, contents: Iterable[bytes]) -> tuple[AnnotationFiles, Literal["unknown"]]:
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
    if len(content) > _MOST_XML_BYTES:
        raise ValueError(
            f"{len(content) / 1e6:.0f} MB, and an XML file of boxes may have {_MOST_XML_BYTES / 1e6:.0f} MB"
        )
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
    names = [each.findtext("name", "").strip() for each in objects]
    if not all(0 < len(name) <= _LONGEST_TEXT for name in names):
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
        return float(text[:_LONGEST_TEXT])
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text[:40]!r}") from None
