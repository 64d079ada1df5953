"""Masks drawn over pictures with the names of their colours, and differences between two predictions, for display."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from senseapp.metrics.mean_iou import MIOU, MIOU_AGREEMENT
from senseapp.metrics.predictions import Columns
from senseapp.metrics.segmentation import VOID, classes_of
from senseapp.tasks.base import AnswerChanges

Colour = tuple[int, int, int]
_SHARE = 0.55  # of the mask in what is seen
_LINE, _SQUARE, _WIDTH = 18, 12, 640  # pixels of a line, of its square and of the whole legend


def palette() -> NDArray[np.uint8]:
    """Return the colour of each class number, uint8 (256, 3): that of Pascal VOC, whose background and void are black.

    Source: Everingham and Winn, The PASCAL VOC development kit, ``VOClabelcolormap``.
    """
    numbers = np.arange(VOID + 1)
    colours = np.zeros((VOID + 1, 3), dtype=np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((numbers >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    colours[VOID] = 0
    return colours


def overlaid(picture: NDArray[np.uint8], classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture, RGB (H, W, 3), under the colours of ``classes`` (H', W'), uint8; class 0 darkens it."""
    height, width = picture.shape[:2]
    rows, columns = (
        (2 * np.arange(wanted) + 1) * there // (2 * wanted)
        for wanted, there in zip((height, width), classes.shape, strict=True)
    )
    colours = palette()[classes[np.ix_(rows, columns)]]
    return np.rint((1 - _SHARE) * picture + _SHARE * colours).astype(np.uint8)


def legend(names: Sequence[tuple[int, str]], colour_of: Callable[[int], Colour] | None = None) -> bytes:
    """Return a PNG file with the colour and the name of each class; empty without any."""
    shown = [(number, name[:24]) for number, name in names][:24]  # a few lines
    if not shown:
        return b""
    font = ImageFont.load_default(_SQUARE)
    places, left, top = [], 0, 0
    for number, name in shown:
        width = _LINE + round(font.getlength(name)) + _LINE
        if left and left + width > _WIDTH:
            left, top = 0, top + _LINE
        places.append((left, top, number, name))
        left += width
    ends = [left + _LINE + round(font.getlength(name)) for left, _, _, name in places]
    image = Image.new("RGB", (max(ends) + 1, top + _LINE), "white")
    draw = ImageDraw.Draw(image)
    for left, top, number, name in places:
        place = left, top + 3, left + _SQUARE, top + 3 + _SQUARE
        draw.rectangle(
            place, fill=colour_of(number) if colour_of else tuple(palette()[number].tolist()), outline="grey"
        )
        draw.text((left + _LINE, top + 2), name, fill="black", font=font)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def changes_of(before: Columns, after: Columns, masks: Tensor | None) -> AnswerChanges:
    """Return the changes; an image is changed where a pixel is. See :meth:`senseapp.tasks.Task.answer_changes`."""
    old, new = classes_of(before), classes_of(after)
    changed = (old != new).flatten(1).count_nonzero(1).double() / old[0].numel()
    metric = MIOU_AGREEMENT if masks is None else MIOU
    moments = metric.moments(before, after, masks)
    kept = 1 - changed
    return AnswerChanges(
        changed=changed > 0,
        damage=changed,
        said=(
            f"Of 100 pixels, {_of_hundred(float(kept.mean()))} keep their class; in the picture that changes "
            f"most, {_of_hundred(float(kept.min()))}."
        ),
        captions=[f"{_of_hundred(share)} of 100 pixels keep their class" for share in kept.tolist()],
        class_drops=partial(metric.of_classes, moments),
        measure="IoU with the original's classes" if masks is None else "IoU with the masks",
    )


def _of_hundred(share: float) -> str:
    """Return a share as pixels of a hundred; only all of them are 100."""
    text = f"{100 * share:.1f}"
    return "more than 99.9" if share < 1 and text == "100.0" else text.removesuffix(".0")
