"""The photographs that ship with senseapp: crops of eleven pictures, for networks trained on photographs.

Crops of some pictures are measured on, crops of the others are left to check schedules on: no scene is in both.
Where the pictures come from and who made them: ``assets/README.md``.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice

import numpy as np
from PIL import Image, ImageOps

from senseapp.core.files import SITE
from senseapp.data.images import PreparedImages, prepared_as
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import NUM_MEASURED_PHOTOGRAPHS, NUM_PHOTOGRAPHS

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
    box = (left, top, left + length, top + length)
    crop = picture.resize((side, side), Image.Resampling.BICUBIC, box)
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
    """Return the first ``num_samples`` crops, or all, prepared as the model wants them; without labels.

    Raises:
        InvalidDataset: the model takes no pictures.
    """
    count = min(num_samples or NUM_PHOTOGRAPHS, NUM_PHOTOGRAPHS)
    names, crops = zip(*map(photograph, range(count)), strict=True)
    return PreparedImages(
        prepared_as(preprocessing, crops, what="The photographs"),
        preprocessing,
        names=names,
        notes=(_NOTE,),
        picture_size=(CROP_SIDE, CROP_SIDE),
    )
