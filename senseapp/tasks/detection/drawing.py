"""Boxes drawn into pictures, in the colours of their classes."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from senseapp.tasks.segmentation.drawing import Colour

_LEAST_SIDE = 160  # pixels: smaller pictures are enlarged, so that a line is thin beside an object
_THIN = 80  # of a side, for each pixel of a line
_EDGE = (0, 0, 0)  # on both sides of a line, so that it is seen on any picture
_TURN = 0.618  # of the circle of hues between one class and the next, so that neighbours differ


def boxes_drawn(picture: NDArray[np.uint8], boxes: NDArray[np.float64], labels: Sequence[int]) -> NDArray[np.uint8]:
    """Return a picture, RGB (H, W, 3), enlarged where it is small, with boxes (n, 4) in its pixels."""
    factor = max(1, -(-_LEAST_SIDE // min(picture.shape[:2])))
    image = Image.fromarray(picture)
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    draw, width = ImageDraw.Draw(image), max(1, min(image.size) // _THIN)
    for box, label in zip(np.asarray(boxes).reshape(-1, 4) * factor, labels, strict=True):
        left, top, right, bottom = (float(side) for side in box)
        if right >= left and bottom >= top:
            around = left - width, top - width, right + width, bottom + width
            draw.rectangle(around, outline=_EDGE, width=3 * width)
            draw.rectangle((left, top, right, bottom), outline=colour_of(label), width=width)
    return np.asarray(image)


def colour_of(label: int) -> Colour:
    """Return the colour of a class: a bright one."""
    red, green, blue = colorsys.hsv_to_rgb(label * _TURN % 1.0, 0.75, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)
