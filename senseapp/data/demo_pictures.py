"""Pictures of two demos: crops of the photographs that ship with senseapp, and coloured rectangles on such crops.

Crops of some of the eleven photographs are measured on, crops of the others are left to check schedules on: no scene is
in both. Rectangles are made from their numbers, with their boxes, for the demo of detection. Where the photographs come
from and who made them: ``assets/README.md``.
"""

from functools import cache
from itertools import cycle, islice

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from senseapp.core.files import SITE
from senseapp.data.images import PreparedImages, prepared_as, transform_of
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import (
    NUM_MEASURED_PHOTOGRAPHS,
    NUM_MEASURED_SHAPES,
    NUM_PHOTOGRAPHS,
    NUM_SHAPES,
    SHAPE_NAMES,
    SHAPE_SIDE,
)

_FOLDER = SITE / "assets" / "photographs"
_MEASURED_ON = ("coffee", "china", "rocket", "astronaut", "coins", "raccoon", "ascent")
_CHECKED_ON = ("chelsea", "flower", "camera", "hopper")

CROP_SIDE = 256
"""Pixels, before a network's own resize and crop."""
_LEAST_SHARE = 0.55  # of the shorter side of a picture
_NOTE = (
    "Photographs without labels: outputs are compared with the original model's. They are crops of few pictures, so "
    "intervals tell how sure this is for such pictures only."
)


def random_crop(
    picture: Image.Image, generator: np.random.Generator, *, least_share: float, side: int = CROP_SIDE
) -> Image.Image:
    """Return a square of ``least_share`` to all of the picture's shorter side, of ``side`` pixels, perhaps mirrored."""
    length = int(min(picture.size) * generator.uniform(least_share, 1.0))
    left, top = (int(generator.integers(0, whole - length + 1)) for whole in picture.size)
    crop = picture.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + length, top + length))
    return ImageOps.mirror(crop) if generator.random() < 0.5 else crop


@cache
def _picture(name: str) -> Image.Image:
    with Image.open(_FOLDER / f"{name}.jpg") as picture:
        return picture.convert("RGB")


def photograph_crop(generator: np.random.Generator, *, measured: bool, side: int) -> Image.Image:
    """Return a part of one of the pictures that are ``measured`` on, else of the others, of ``side`` pixels."""
    pictures = _MEASURED_ON if measured else _CHECKED_ON
    name = pictures[int(generator.integers(len(pictures)))]
    # a texture will do for a background, so crops are smaller, and more varied
    return random_crop(_picture(name), generator, least_share=0.2, side=side)


def photograph(index: int) -> tuple[str, Image.Image]:
    """Return name and pixels of a crop; the first :data:`NUM_MEASURED_PHOTOGRAPHS` are those to measure on."""
    place = index - NUM_MEASURED_PHOTOGRAPHS
    pictures = _MEASURED_ON if place < 0 else _CHECKED_ON
    name = next(islice(cycle(pictures), index if place < 0 else place, None))
    crop = random_crop(_picture(name), np.random.default_rng(index), least_share=_LEAST_SHARE)
    return f"{name}-{index:03d}.png", crop


def load_photographs(preprocessing: Preprocessing, num_samples: int | None) -> PreparedImages:
    """Return the first ``num_samples`` crops, or all, without labels; InvalidDataset where it takes no pictures."""
    count = min(num_samples or NUM_PHOTOGRAPHS, NUM_PHOTOGRAPHS)
    names, crops = zip(*map(photograph, range(count)), strict=True)
    return PreparedImages(
        prepared_as(preprocessing, crops, what="The photographs"),
        preprocessing,
        names=names,
        notes=(_NOTE,),
        picture_size=(CROP_SIDE, CROP_SIDE),
    )


# ---- rectangles

COLOURS = {1: (225, 50, 50), 2: (50, 205, 50), 3: (60, 80, 225)}  # red, green and blue, told apart on photographs
_SIDES = (10, 30)  # of a rectangle
_MOST = 4  # rectangles of a picture; more would cover each other
_NOISE = 12  # standard deviation of the pixels of a rectangle, of 255, so that flat areas do not tell it
_SHAPES_NOTE = (
    "The pictures are coloured rectangles on crops of photographs, made by code with their boxes: figures tell of such "
    "pictures only."
)
Rectangle = tuple[int, int, int, int, int]
"""Class, left, top, right and bottom, in pixels."""


def shapes(index: int) -> tuple[NDArray[np.uint8], list[Rectangle]]:
    """Return picture number ``index``, RGB (64, 64, 3), and its rectangles; those covered by half are left out."""
    generator = np.random.default_rng([abs(index), index < 0])
    crop = photograph_crop(generator, measured=index < NUM_MEASURED_SHAPES, side=SHAPE_SIDE)
    picture = np.asarray(crop, np.float64).copy()
    found: list[Rectangle] = []
    for _ in range(generator.integers(1, _MOST + 1)):
        width, height = (int(side) for side in generator.integers(*_SIDES, 2))
        left, top = (int(generator.integers(0, SHAPE_SIDE - side)) for side in (width, height))
        label = int(generator.integers(1, len(SHAPE_NAMES)))
        shade = np.array(COLOURS[label]) * generator.uniform(0.7, 1.1)
        box = (left, top, left + width, top + height)
        picture[top : box[3], left : box[2]] = generator.normal(shade, _NOISE, (height, width, 3))
        found = [each for each in found if not covered(each, box)]
        found.append((label, *box))
    return picture.clip(0, 255).astype(np.uint8), found


def covered(one: Rectangle, by: tuple[int, int, int, int]) -> bool:
    """Return whether at least half of a rectangle lies behind another."""
    _, left, top, right, bottom = one
    shared = max(0, min(right, by[2]) - max(left, by[0])) * max(0, min(bottom, by[3]) - max(top, by[1]))
    return 2 * shared > (right - left) * (bottom - top)


def load_shapes(preprocessing: Preprocessing, num_samples: int | None, *, with_boxes: bool) -> PreparedImages:
    """Return the first ``num_samples`` pictures, or all, prepared as the model wants them.

    ``with_boxes`` adds the boxes, in pixels of the network's input, and the names of the classes. Raises InvalidDataset
    where the model takes no pictures.
    """
    count = min(num_samples or NUM_SHAPES, NUM_SHAPES)
    size = (SHAPE_SIDE, SHAPE_SIDE)
    scenes = [shapes(index) for index in range(count)]
    pixels = prepared_as(
        preprocessing, (Image.fromarray(picture) for picture, _ in scenes), what="The pictures of shapes"
    )
    geometry = transform_of(preprocessing).geometry(size)
    boxes: list[dict[str, torch.Tensor]] = []
    for _, found in scenes if with_boxes else ():
        rows = np.array(found, np.float64).reshape(-1, 5)
        boxes.append(
            {
                "boxes": torch.from_numpy(geometry.boxes(rows[:, 1:])).float(),
                "labels": torch.from_numpy(rows[:, 0]).long(),
                "crowd": torch.zeros(len(rows), dtype=torch.bool),
            }
        )
    return PreparedImages(
        pixels,
        preprocessing,
        tuple(boxes) if with_boxes else None,
        class_names=SHAPE_NAMES if with_boxes else (),
        names=tuple(f"shapes-{index:03d}.png" for index in range(count)),
        notes=(_SHAPES_NOTE,),
        picture_size=size,
    )
