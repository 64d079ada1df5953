"""Pictures of coloured rectangles on noise with their masks, and a network that finds them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from senseapp.core.errors import UnknownModel
from senseapp.descriptions import ModelSource
from senseapp.records.spec import ModelSpec

if TYPE_CHECKING:
    from torch import nn

    from senseapp.networks.loaded import LoadedModel

CLASSES = ("background", "red", "green")
SIDE = 32
_SIDES = (9, 16)
_NOISE = (70, 150)
_COLOURS = {1: (235, 20, 20), 2: (20, 235, 20)}
SOURCE = ModelSource(
    name="toy_segmenters",
    label="Toy segmentation networks",
    loader="tests.toy_rectangles:load",
    names=("rectangles",),
    help="A network of a test.",
)


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


def network(seed: int = 0) -> nn.Module:
    """Return three convolutions that find red and green, made by hand, with some noise in their weights."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    module = nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(3, 8, 3, padding=1),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 8, 3, padding=1),
            relu2=nn.ReLU(),
            head=nn.Conv2d(8, len(CLASSES), 1),
        )
    )
    colours = torch.tensor([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5]])  # red and green against the rest
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.1)
        module.first.weight[:2] += colours[:, :, None, None] / 9
        module.second.weight[range(2), range(2), 1, 1] += 1.0
        module.head.weight[[1, 2], [0, 1], 0, 0] += 4.0
        module.head.bias[0] += 1.5
    return module.eval()


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return the network; see :class:`ModelSource`."""
    from senseapp.networks.loaded import LoadedModel, Preprocessing

    if spec.name != "rectangles":
        raise UnknownModel(f"There is no toy called {spec.name!r}.")
    report("Making a toy")
    return LoadedModel(
        module=network().requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3),
        num_classes=len(CLASSES),
        pretrained=True,
        class_names=CLASSES,
    )


def picture_files(count: int = 8, size: tuple[int, int] = (SIDE, SIDE)) -> dict[str, bytes]:
    """Return pictures and their masks, ``images/003.png`` and ``masks/003.png``."""
    from PIL import Image

    from tests.pictures import encoded  # imports torch, which a source does not need to be named

    files = {}
    for number in range(count):
        found = scene(number, size)
        files[f"images/{number:03d}.png"] = encoded(Image.fromarray(found.picture))
        files[f"masks/{number:03d}.png"] = encoded(Image.fromarray(found.mask))
    return files
