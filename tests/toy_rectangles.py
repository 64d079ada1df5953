"""Pictures of coloured rectangles on noise, for the toy tasks of segmentation and detection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from senseapp.core.errors import UnknownModel
from senseapp.records.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn

    from senseapp.networks.loaded import LoadedModel

CLASSES = ("background", "red", "green")
SIDE = 32
_SIDES = (9, 16)
_NOISE = (70, 150)
_COLOURS = {1: (235, 20, 20), 2: (20, 235, 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One picture, RGB uint8 (H, W, 3), its mask of classes, uint8 (H, W), and its rectangles.

    ``rectangles`` are (class, left, top, right, bottom); they do not overlap, and there may be none.
    """

    picture: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    rectangles: tuple[tuple[int, int, int, int, int], ...]


def scene(seed: int, size: tuple[int, int] = (SIDE, SIDE)) -> Scene:
    """Return picture number ``seed``, of this (width, height), with up to two rectangles side by side."""
    width, height = size
    generator = np.random.default_rng(seed)
    picture = generator.integers(*_NOISE, (height, width, 3), dtype=np.uint8)
    mask, found = np.zeros((height, width), dtype=np.uint8), []
    for half in range(generator.integers(0, 3)):
        across, down = (int(side) for side in generator.integers(*_SIDES, 2))
        left = half * (width // 2) + int(generator.integers(0, width // 2 - across + 1))
        top = int(generator.integers(0, height - down + 1))
        number = int(generator.integers(1, len(CLASSES)))
        place = slice(top, top + down), slice(left, left + across)
        picture[place], mask[place] = _COLOURS[number], number
        found.append((number, left, top, left + across, top + down))
    return Scene(picture=picture, mask=mask, rectangles=tuple(found))


def loaded(spec: ModelSpec, network: nn.Module, report: Callable[[str], None]) -> LoadedModel:
    """Return a network of three classes as a source of models does; see :class:`ModelSource`."""
    from senseapp.networks.loaded import LoadedModel, Preprocessing

    if spec.name != "rectangles":
        raise UnknownModel(f"There is no toy called {spec.name!r}.")
    report("Making a toy")
    return LoadedModel(
        module=network.requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3),
        num_classes=len(CLASSES),
        pretrained=True,
        class_names=CLASSES,
    )
