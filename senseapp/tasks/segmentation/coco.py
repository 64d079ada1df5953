"""Masks of all pictures in one JSON file, as COCO writes them: polygons, or runs of pixels.

A category's id is its class number. Where no id is 0, pixels without an annotation are of class 0, the background; else
nobody knows their class. Smaller objects lie on top of larger ones, and crowds are void.

Source: https://cocodataset.org/#format-data; the text form of runs is that of ``maskApi.c`` in pycocotools.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from senseapp.core.texts import plural, printable
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import AnnotationFiles, Listing, PictureGeometry
from senseapp.tasks.detection.annotations.coco import parsed_json

_MOST_FILES = 8
_MOST_PICTURES = 500_000
_MOST_OBJECTS = 5_000  # of one picture
_MOST_CORNERS = 200_000  # of the polygons of one picture
_FINER = 4  # in each direction, polygons are filled on a finer grid than that of the network's input
_FIRST = ("instances", "stuff", "coco", "annotations", "segmentation", "masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One object.

    Attributes:
        label: its class number, or VOID.
        area: by which larger ones lie below smaller ones.
        polygons: corners (n, 2) as (x, y), in pixels of the stored picture; empty for runs.
        runs: lengths of runs of pixels, outside and inside in turn, down the columns of the picture.
        size: (width, height) that the runs are of.
    """

    label: int
    area: float
    polygons: tuple[NDArray[np.float64], ...] = ()
    runs: NDArray[np.int64] | None = None
    size: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The objects of one picture, and the class of all other pixels."""

    shapes: tuple[Any, ...]
    rest: int

    def placed(self, geometry: PictureGeometry) -> NDArray[np.uint8]:
        """Return the class of each pixel of the network's input, uint8 (H, W); padding is void."""
        width, height = geometry.size
        found = geometry.mask(np.full((height, width), self.rest, dtype=np.uint8), fill=VOID)
        inside = geometry.mask(np.ones((height, width), dtype=np.uint8), fill=0) > 0
        for shape in sorted(map(_shape, self.shapes), key=lambda each: -each.area):
            found[_covered(shape, geometry) & inside] = shape.label
        return found


def find_coco(listing: Listing) -> AnnotationFiles | None:
    """Return the masks of the first file that lists pictures which are there; None where none does.

    Raises:
        ValueError: a file that a person chose, or all that look like it, are damaged.
    """
    paths = sorted(path for path in listing.others if path.casefold().endswith(".json"))
    if listing.chosen:
        ordered = [listing.chosen]
    else:
        ordered = sorted(paths, key=lambda path: (not any(part in path.casefold() for part in _FIRST), path))
    damaged: list[ValueError] = []
    for path in ordered[:_MOST_FILES]:
        try:
            found = _read(listing, path, choices=tuple(paths))
        except ValueError as error:
            damaged.append(ValueError(f"{printable(path)}: {error}"))
            continue
        if found is not None and (found.parsed or listing.chosen):
            return found
    if damaged:
        raise damaged[0]
    return None


def _read(listing: Listing, path: str, *, choices: tuple[str, ...]) -> AnnotationFiles | None:
    content = parsed_json(listing.read(path))
    if not isinstance(content, Mapping) or not {"images", "annotations"} <= content.keys():
        if listing.chosen:
            raise ValueError('a COCO file has the keys "images" and "annotations"')
        return None
    names, objects = _images(content["images"]), _objects(content["annotations"])
    if not any("segmentation" in each for found in objects.values() for each in found):
        return None
    categories = _categories(content.get("categories", []))
    rest = VOID if 0 in categories else 0
    pictures = listing.named(list(names.values()), beside=path)
    parsed = {
        picture: Shapes(shapes=tuple(objects.get(number, ())), rest=rest)
        for number, picture in zip(names, pictures, strict=True)
        if picture is not None
    }
    lost = len(names) - len(parsed)
    notes = [f"{printable(path)} lists {plural(lost, 'picture')} that are not there."] if lost else []
    notes.append(
        "Category ids are class numbers; pixels without an annotation are "
        + ("void: no class is known of them." if rest == VOID else "of class 0, the background.")
    )
    return AnnotationFiles(
        parsed=parsed,
        names=tuple(categories.get(number, "") for number in range(max(categories, default=-1) + 1)),
        notes=tuple(notes),
        choices=choices,
    )


def _images(value: object) -> dict[int | str, str]:
    """Return the name of each picture by its id."""
    if not isinstance(value, list) or len(value) > _MOST_PICTURES:
        raise ValueError(f'"images" must be a list of up to {_MOST_PICTURES:,} pictures')
    found: dict[int | str, str] = {}
    for each in value:
        number, name = (each.get("id"), each.get("file_name")) if isinstance(each, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(number, int | str):
            raise ValueError("a picture needs an id and a file_name that is a text")
        if number in found:
            raise ValueError(f"two pictures with the id {str(number)[:40]!r}")
        found[number] = name
    return found


def _objects(value: object) -> dict[int | str, list[Mapping[str, Any]]]:
    """Return the annotations of each picture, by its id, as they are written."""
    if not isinstance(value, list):
        raise ValueError('"annotations" must be a list')
    found: dict[int | str, list[Mapping[str, Any]]] = {}
    for each in value:
        number = each.get("image_id") if isinstance(each, Mapping) else None
        if not isinstance(number, int | str):
            raise ValueError("an annotation needs an image_id")
        found.setdefault(number, []).append(each)
    return found


def _categories(value: object) -> dict[int, str]:
    if not isinstance(value, list):
        raise ValueError('"categories" must be a list')
    return {_class_number(each.get("id")): str(each.get("name", "")) for each in value if isinstance(each, Mapping)}


def _class_number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < VOID:
        raise ValueError(f"class numbers are from 0 to {VOID - 1}, got {str(value)[:40]!r}")
    return value


# ---- one object


def _shape(written: Mapping[str, Any]) -> Shape:
    """Return one annotation; raises ValueError where it says nothing that can be drawn."""
    label = VOID if written.get("iscrowd") else _class_number(written.get("category_id"))
    outline = written.get("segmentation")
    if isinstance(outline, Mapping):
        size = outline.get("size")
        if not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) for side in size):
            raise ValueError("runs of pixels need a size of two whole numbers")
        runs = _runs(outline.get("counts"))
        return Shape(label=label, area=float(runs[1::2].sum()), runs=runs, size=(size[1], size[0]))
    if not isinstance(outline, list):
        raise ValueError("an object with no polygons and no runs of pixels")
    polygons = tuple(map(_polygon, outline))
    if sum(map(len, polygons)) > _MOST_CORNERS:
        raise ValueError(f"an object with more than {_MOST_CORNERS:,} corners")
    return Shape(label=label, area=sum(map(_area, polygons)), polygons=polygons)


def _polygon(values: object) -> NDArray[np.float64]:
    if not isinstance(values, list) or len(values) < 6 or len(values) % 2:
        raise ValueError("a polygon needs x and y of three corners at least")
    if not all(isinstance(each, int | float) and math.isfinite(each) and abs(each) < 1e6 for each in values):
        raise ValueError("a polygon with a corner that is no number")
    return np.asarray(values, dtype=np.float64).reshape(-1, 2)


def _area(polygon: NDArray[np.float64]) -> float:
    x, y = polygon.T
    return abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2


def _runs(counts: object) -> NDArray[np.int64]:
    """Return lengths of runs, written as a list of numbers or as text."""
    if isinstance(counts, str):
        numbers: Sequence[int] = _decoded(counts)
    elif isinstance(counts, list) and all(isinstance(each, int) for each in counts):
        numbers = counts
    else:
        raise ValueError("runs of pixels that are no list and no text")
    if any(not 0 <= each < 2**31 for each in numbers):
        raise ValueError("a run of pixels that is shorter than 0, or too long")
    return np.asarray(numbers, dtype=np.int64)


def _decoded(text: str) -> list[int]:
    """Return the runs that a text holds: five bits a letter, differences from the run before the last from the third.

    Source: ``rleFrString`` in ``maskApi.c`` of pycocotools.
    """
    found: list[int] = []
    number = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 30:
            raise ValueError("runs of pixels in a text that is none of COCO's")
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        found.append(number + (found[-2] if len(found) > 2 else 0))
        number = shift = 0
    return found


# ---- in the network's input


def _covered(shape: Shape, geometry: PictureGeometry) -> NDArray[np.bool_]:
    """Return which pixels of the network's input an object covers, (H, W)."""
    if shape.runs is None:
        return _filled([geometry.points(each) for each in shape.polygons], geometry.output)
    width, height = shape.size
    if shape.size != geometry.size:
        raise ValueError(f"runs are not of the picture's {geometry.size[0]:,} × {geometry.size[1]:,} pixels")
    if int(shape.runs.sum()) != width * height:
        raise ValueError(f"runs of {int(shape.runs.sum()):,} pixels, and the picture has {width * height:,}")
    inside = np.arange(len(shape.runs)) % 2 == 1
    columns = np.repeat(inside, shape.runs).reshape(width, height)
    return geometry.mask(np.ascontiguousarray(columns.T).astype(np.uint8), fill=0) > 0


def _filled(polygons: Iterable[NDArray[np.float64]], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which pixels of (width, height) have their centre in one of the polygons, (H, W)."""
    from PIL import Image, ImageDraw

    width, height = size
    found = np.zeros((height, width), dtype=bool)
    for polygon in polygons:
        low = np.floor(polygon.min(axis=0)).clip(0, (width, height)).astype(int)
        high = np.ceil(polygon.max(axis=0)).clip(0, (width, height)).astype(int)
        across, down = (high - low).tolist()
        if not across or not down:
            continue
        canvas = Image.new("1", (across * _FINER, down * _FINER))
        corners = ((polygon - low) * _FINER - 0.5).clip(-1e5, 1e5)
        ImageDraw.Draw(canvas).polygon([(float(x), float(y)) for x, y in corners], fill=1)
        centres = np.asarray(canvas)[_FINER // 2 :: _FINER, _FINER // 2 :: _FINER]
        found[low[1] : high[1], low[0] : high[0]] |= centres
    return found
