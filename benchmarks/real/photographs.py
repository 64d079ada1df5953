"""Photographs to measure a real network on: crops of the sample pictures of scikit-image and scikit-learn.

Crops of left halves make schedules, repairs and calibrations, crops of right halves score them. Nothing of the pictures
is kept in this project; their licences allow more than that:

=====================  ==================================================================
astronaut, moon        NASA, public domain
hubble_deep_field      NASA, public domain
chelsea, coffee        CC0, S. van der Walt and R. Michetti
rocket                 CC0, SpaceX
camera                 CC0, L. Varshney
coins                  no known copyright restrictions, Brooklyn Museum
brick, grass, gravel   CC0, cgbookcase.com and polyhaven.com
retina                 CC0, M. Haggstrom
china, flower          CC BY 2.0, danielbuechele and vultilion (shown by scikit-learn's ``load_sample_images``)
=====================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from benchmarks.real.packages import file_of
from senseapp.data.demo_pictures import random_crop


@dataclass(frozen=True, slots=True)
class Half:
    """The left or the right half of a picture, so that crops of one share no pixel with crops of the other."""

    picture: str
    right: bool


_PICTURES = (
    *("skimage/data/astronaut.png", "skimage/data/chelsea.png", "skimage/data/coffee.png", "skimage/data/rocket.jpg"),
    *("skimage/data/camera.png", "skimage/data/coins.png", "skimage/data/retina.jpg", "skimage/data/moon.png"),
    *("skimage/data/hubble_deep_field.jpg", "skimage/data/brick.png", "skimage/data/grass.png"),
    *("skimage/data/gravel.png", "sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"),
)
MADE_FROM = tuple(Half(picture, right=False) for picture in _PICTURES)
"""What schedules, repairs and calibrations may see."""
SCORED_ON = tuple(Half(picture, right=True) for picture in _PICTURES)
"""What nothing is made from: other parts of the same scenes, as a team's images are of one domain."""

_SIDE = 256  # of a crop, in pixels; the network's transform takes the middle 224
_LEAST_SHARE = 0.45  # of the shorter side of the half


@cache
def _picture(name: str) -> Image.Image:
    with Image.open(file_of(name)) as picture:
        return picture.convert("RGB")


def _half(half: Half) -> Image.Image:
    picture = _picture(half.picture)
    middle = picture.width // 2
    return picture.crop((middle, 0, picture.width, picture.height) if half.right else (0, 0, middle, picture.height))


def photographs(count: int, halves: Sequence[Half] = SCORED_ON, *, seed: int = 0) -> list[Image.Image]:
    """Return ``count`` crops of 256 pixels a side, of all ``halves`` in turn; the same for the same seed."""
    generator = np.random.default_rng(seed)
    pictures = (_half(halves[index % len(halves)]) for index in range(count))
    return [random_crop(picture, generator, least_share=_LEAST_SHARE, side=_SIDE) for picture in pictures]


def write_photographs(
    folder: Path, count: int, halves: Sequence[Half] = SCORED_ON, *, seed: int = 0, labels: Sequence[int] | None = None
) -> Path:
    """Write crops as PNG files into ``folder``, in class folders where ``labels`` are given; return the folder."""
    for index, crop in enumerate(photographs(count, halves, seed=seed)):
        home = folder if labels is None else folder / str(labels[index])
        home.mkdir(parents=True, exist_ok=True)
        crop.save(home / f"{index:04}.png")
    return folder


def tensors(
    count: int,
    halves: Sequence[Half] = SCORED_ON,
    *,
    seed: int = 0,
    mean: float = 0.5,
    std: float = 0.5,
    side: int = 224,
) -> Tensor:
    """Return crops as the network takes them, float32 (count, 3, side, side): their middle, normalised."""
    crops = [ImageOps.fit(crop, (_SIDE, _SIDE)) for crop in photographs(count, halves, seed=seed)]
    border = (_SIDE - side) // 2
    values = np.stack([np.asarray(crop)[border : border + side, border : border + side] for crop in crops])
    images = torch.from_numpy(values).permute(0, 3, 1, 2).float() / 255
    return (images - mean) / std
