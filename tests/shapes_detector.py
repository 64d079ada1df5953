"""A small SSD, trained by ``benchmarks/train_shapes_detector.py``, and pictures of coloured rectangles for it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

from senseapp.descriptions import ModelSource
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.detectors import opened_detector
from senseapp.records.spec import ModelSpec
from tests.pictures import encoded

WEIGHTS = Path(__file__).parent / "data" / "shapes_detector.safetensors"
SIDE = 64
NAMES = ("background", "red", "green", "blue")
_COLOURS = {1: (225, 50, 50), 2: (50, 205, 50), 3: (60, 80, 225)}
_SIDES = (10, 30)
_MOST = 4


class Backbone(nn.Module):
    """Two maps, of strides 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16), _block(16, 24))
        self.middle = nn.Sequential(_block(24, 32), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.top = _block(32, 48)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        middle = self.middle(self.stem(images))
        return OrderedDict([("0", middle), ("1", self.top(middle))])


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def network(seed: int = 0) -> SSD:
    """Return the detector with random weights, as torchvision runs it."""
    torch.manual_seed(seed)
    anchors = DefaultBoxGenerator([[2], [2]], scales=[0.2, 0.35, 0.6])
    return SSD(
        Backbone(),
        anchors,
        size=(SIDE, SIDE),
        num_classes=len(NAMES),
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.25, 0.25, 0.25],
    ).eval()


def trained() -> SSD:
    """Return the detector with the weights of the benchmark."""
    module = network()
    module.load_state_dict(load_file(WEIGHTS))
    return module


SOURCE = ModelSource(
    name="shapes",
    label="Shapes detectors",
    loader="tests.shapes_detector:load",
    names=("ssd",),
    help="A network of a test.",
)


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return the trained network with open heads; see :class:`ModelSource`."""
    report("Opening the detector of the tests")
    return LoadedModel(
        module=opened_detector(trained()).requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(
            input_shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear", fit="stretch"
        ),
        num_classes=len(NAMES),
        pretrained=True,
        class_names=NAMES,
        task="detection",
    )


def scene(seed: int) -> tuple[np.ndarray, list[tuple[int, int, int, int, int]]]:
    """Return picture number ``seed``, uint8 (H, W, 3), and its rectangles: class, left, top, right, bottom."""
    generator = np.random.default_rng(seed)
    picture = generator.normal(generator.uniform(90, 150, 3), 18, (SIDE, SIDE, 3))
    found = []
    for _ in range(generator.integers(1, _MOST + 1)):
        width, height = (int(side) for side in generator.integers(*_SIDES, 2))
        left, top = int(generator.integers(0, SIDE - width)), int(generator.integers(0, SIDE - height))
        label = int(generator.integers(1, len(NAMES)))
        shade = np.array(_COLOURS[label]) * generator.uniform(0.7, 1.1)
        picture[top : top + height, left : left + width] = generator.normal(shade, 18, (height, width, 3))
        found = [each for each in found if not _covered(each, (left, top, left + width, top + height))]
        found.append((label, left, top, left + width, top + height))
    return picture.clip(0, 255).astype(np.uint8), found


def _covered(one: tuple[int, int, int, int, int], by: tuple[int, int, int, int]) -> bool:
    _, left, top, right, bottom = one
    shared = max(0, min(right, by[2]) - max(left, by[0])) * max(0, min(bottom, by[3]) - max(top, by[1]))
    return 2 * shared > (right - left) * (bottom - top)


def inputs(numbers: range) -> tuple[Tensor, tuple[dict[str, Tensor], ...]]:
    """Return prepared images, (N, 3, 64, 64), and their annotations as the task reads them."""
    scenes = [scene(number) for number in numbers]
    pictures = torch.stack([torch.from_numpy(picture).permute(2, 0, 1) for picture, _ in scenes])
    boxes = [torch.tensor(found, dtype=torch.float32).reshape(-1, 5) for _, found in scenes]
    targets = tuple(
        {"boxes": each[:, 1:], "labels": each[:, 0].long(), "crowd": torch.zeros(len(each), dtype=torch.bool)}
        for each in boxes
    )
    return (pictures / 255 - 0.5) / 0.25, targets


def picture_files(count: int, *, first: int = 0) -> dict[str, bytes]:
    """Return pictures, ``images/0003.png``, and their boxes as COCO writes them, ``instances.json``."""
    files, images, boxes = {}, [], []
    for number in range(first, first + count):
        picture, found = scene(number)
        files[f"images/{number:04d}.png"] = encoded(Image.fromarray(picture))
        images.append({"id": number, "file_name": f"{number:04d}.png", "width": SIDE, "height": SIDE})
        for label, left, top, right, bottom in found:
            box = [left, top, right - left, bottom - top]
            boxes.append({"id": len(boxes), "image_id": number, "category_id": label, "bbox": box, "iscrowd": 0})
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES) if number]
    files["instances.json"] = json.dumps({"images": images, "annotations": boxes, "categories": categories}).encode()
    return files
