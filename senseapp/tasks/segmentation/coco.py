"""Masks of all pictures in one JSON file, as COCO writes them: polygons, or runs of pixels.

Pixels without an annotation have a number of their own, :data:`REST`. Smaller objects lie on top of larger ones, and
crowds are void.

Source: https://cocodataset.org/#format-data; the text form of runs is that of ``maskApi.c`` in pycocotools.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from senseapp.metrics.segmentation import VOID
from senseapp.tasks.annotations import FARTHEST, AnnotationFiles, Listing, PictureGeometry
from senseapp.tasks.coco import PictureSize, Written, find_coco

REST = VOID - 1
"""Number of pixels without an annotation."""
_MOST_OBJECTS = 5_000  # of one picture
_MOST_POLYGONS, _MOST_CORNERS = 20_000, 200_000  # of one picture
_MOST_PIXELS = 1_000_000_000  # drawn for one picture; each of these limits takes up to ten seconds of processor time
_FINER = 4  # in each direction, polygons are filled on a finer grid than that of the network's input


class Shape(NamedTuple):
    """One object, with corners of polygons, (n, 2) as (x, y), in pixels of the stored picture, or lengths of runs.

    Runs of pixels, outside and inside in turn, go down the columns of the picture. Larger areas lie below smaller ones.
    """

    label: int
    area: float
    polygons: tuple[NDArray[np.float64], ...] = ()
    runs: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The objects of one picture."""

    shapes: tuple[Any, ...]

    def placed(self, geometry: PictureGeometry) -> NDArray[np.uint8]:
        """Return the class of each pixel of the network's input, uint8 (H, W); padding is void."""
        shapes = sorted((_shape(each, geometry.size) for each in self.shapes), key=lambda each: -each.area)
        corners = [len(polygon) for each in shapes for polygon in each.polygons]
        if len(corners) > _MOST_POLYGONS:
            raise ValueError(f"more than {_MOST_POLYGONS:,} polygons")
        if sum(corners) > _MOST_CORNERS:
            raise ValueError(f"polygons with more than {_MOST_CORNERS:,} corners")
        ends = [_FINER * side for side in geometry.output]
        canvas, left = Image.new("L", (ends[0], ends[1]), REST), _MOST_PIXELS
        for shape in shapes:
            polygons = [(_FINER * geometry.points(each) - 0.5).clip(-1e5, 1e5) for each in shape.polygons]
            left -= sum(int(np.ptp(each.clip(0, ends), axis=0).prod()) for each in polygons)
            left -= 0 if shape.runs is None else math.prod(geometry.size)
            if left < 0:
                raise ValueError(f"shapes of more than {_MOST_PIXELS:,} pixels")
            for polygon in polygons:
                ImageDraw.Draw(canvas).polygon(polygon.ravel().tolist(), fill=shape.label)
            if shape.runs is not None:
                covered = np.repeat(np.arange(len(shape.runs), dtype=np.uint8) % 2, shape.runs)
                mask = np.ascontiguousarray(covered.reshape(geometry.size).T)  # (H, W)
                inside = Image.fromarray(255 * geometry.mask(mask, fill=0))
                canvas.paste(shape.label, mask=inside.resize(canvas.size, Image.Resampling.NEAREST))
        found = np.asarray(canvas)[_FINER // 2 :: _FINER, _FINER // 2 :: _FINER]
        picture = geometry.mask(np.ones(geometry.size[::-1], dtype=np.uint8), fill=0) > 0
        return np.where(picture, found, np.uint8(VOID))


def find_shapes(listing: Listing) -> AnnotationFiles | None:
    """Return the masks of the first file that lists pictures which are there; see :func:`find_coco`."""
    found = find_coco(listing, _shapes_of, part="segmentation", check=lambda _: None, most=REST)
    names = (*found.names, *[""] * REST)[:REST] if found else ()
    return found and replace(found, names=(*names, "background"))


def _shapes_of(written: Sequence[Written], _: PictureSize) -> Shapes:
    if len(written) > _MOST_OBJECTS:
        raise ValueError(f"a picture with {len(written):,} objects, and up to {_MOST_OBJECTS:,} are taken")
    return Shapes(shapes=tuple(written))


def _shape(written: Written, size: tuple[int, int]) -> Shape:
    """Return one annotation of a picture of ``size``; raises ValueError where it says nothing that can be drawn."""
    label = VOID if written.get("iscrowd") else written["category_id"]
    outline = written.get("segmentation")
    if isinstance(outline, Mapping):
        runs, told = _runs(outline.get("counts")), outline.get("size")
        if not isinstance(told, list) or len(told) != 2 or not all(isinstance(side, int) for side in told):
            raise ValueError("runs of pixels need a size of two whole numbers")
        if told != [size[1], size[0]]:
            raise ValueError(f"runs are not of the picture's {size[0]:,} × {size[1]:,} pixels")
        if int(runs.sum()) != math.prod(size):
            raise ValueError(f"runs of {int(runs.sum()):,} pixels, and the picture has {math.prod(size):,}")
        return Shape(label=label, area=float(runs[1::2].sum()), runs=runs)
    if not isinstance(outline, list):
        raise ValueError("an object with no polygons and no runs of pixels")
    polygons = tuple(map(_polygon, outline))
    return Shape(label=label, area=sum(map(_area, polygons)), polygons=polygons)


def _polygon(values: object) -> NDArray[np.float64]:
    if not isinstance(values, list) or len(values) < 6 or len(values) % 2:
        raise ValueError("a polygon needs x and y of three corners at least")
    if not all(isinstance(each, int | float) and abs(each) < FARTHEST for each in values):  # NaN is not
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
