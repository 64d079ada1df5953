"""Boxes drawn into pictures, in the colours of their classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from senseapp.tasks.segmentation.drawing import legend, palette

_LEAST_SIDE = 160  # pixels: smaller pictures are enlarged, so that a line is thin beside an object
_THIN = 80  # of a side, for each pixel of a line
_OFFSET = 1  # class 0 would be black


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
            draw.rectangle((left, top, right, bottom), outline=_colour(label), width=width)
    return np.asarray(image)


def box_legend(names: Sequence[tuple[int, str]]) -> bytes:
    """Return the colours of classes as a PNG file; empty without any."""
    return legend([(_place(label), name) for label, name in names])


def _colour(label: int) -> tuple[int, int, int]:
    red, green, blue = palette()[_place(label)].tolist()
    return red, green, blue


def _place(label: int) -> int:
    return (label + _OFFSET) % 255 or 1
