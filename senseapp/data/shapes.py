"""Pictures of the detection demo: coloured rectangles on crops of the photographs that ship with senseapp.

They are made from their numbers, with their boxes. The first :data:`NUM_MEASURED_SHAPES` lie on other photographs than
the pictures behind them, so that schedules are checked on scenes that nothing was measured on.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from senseapp.data.images import PreparedImages, prepared_as, transform_of
from senseapp.data.photographs import photograph_crop
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import NUM_MEASURED_SHAPES, NUM_SHAPES, SHAPE_NAMES, SHAPE_SIDE

COLOURS = {1: (225, 50, 50), 2: (50, 205, 50), 3: (60, 80, 225)}  # red, green and blue, told apart on photographs
_SIDES = (10, 30)  # of a rectangle
_MOST = 4  # rectangles of a picture; more would cover each other
_NOISE = 12  # standard deviation of the pixels of a rectangle, of 255, so that flat areas do not tell it
_NOTE = (
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

    ``with_boxes`` adds the boxes, in pixels of the network's input, and the names of the classes.

    Raises:
        InvalidDataset: the model takes no pictures.
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
        notes=(_NOTE,),
        picture_size=size,
    )
