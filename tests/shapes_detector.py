"""The network of the third demo with weights of its own, and pictures of coloured rectangles on noise for it.

They were trained for 40 epochs on 800 of its pictures by ``benchmarks/train_shapes_detector.py``, which the history of
the repository keeps.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from senseapp.data.demo_pictures import COLOURS, covered
from senseapp.descriptions import ModelSource
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.demo import build_detector
from senseapp.networks.sources.detectors import opened_detector
from senseapp.records.spec import SHAPE_NAMES, ModelSpec
from tests.pictures import encoded

WEIGHTS = Path(__file__).parent / "data" / "shapes_detector.safetensors"
SIDE = 64
_SIDES = (10, 30)
_MOST = 4


def trained() -> SSD:
    """Return the detector with its stored weights."""
    module = build_detector()
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
        num_classes=len(SHAPE_NAMES),
        pretrained=True,
        class_names=SHAPE_NAMES,
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
        label = int(generator.integers(1, len(SHAPE_NAMES)))
        shade = np.array(COLOURS[label]) * generator.uniform(0.7, 1.1)
        picture[top : top + height, left : left + width] = generator.normal(shade, 18, (height, width, 3))
        found = [each for each in found if not covered(each, (left, top, left + width, top + height))]
        found.append((label, left, top, left + width, top + height))
    return picture.clip(0, 255).astype(np.uint8), found


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
    categories = [{"id": number, "name": name} for number, name in enumerate(SHAPE_NAMES) if number]
    files["instances.json"] = json.dumps({"images": images, "annotations": boxes, "categories": categories}).encode()
    return files


class DecodedDetector(nn.Module):
    """The trained detector as YOLO exports are: centre, width, height in pixels and shares of classes in one tensor.

    Args:
        scale: pixels of its input for each of the trained one.
        rows: whether boxes are joined as rows (N, A, 4 + K) and transposed behind that; else (N, 4 + K, A) at once.
        extra: a class more that it never finds.
    """

    def __init__(self, scale: int = 8, *, rows: bool = False, extra: bool = False) -> None:
        super().__init__()
        own = trained()
        self.scale, self.rows, self.extra = scale, rows, extra
        self.backbone, self.head = own.backbone, own.head
        maps = list(self.backbone(torch.zeros(1, 3, SIDE, SIDE)).values())
        anchors = own.anchor_generator(ImageList(torch.zeros(1, 3, SIDE, SIDE), [(SIDE, SIDE)]), maps)[0]
        self.register_buffer("sides", scale * (anchors[:, 2:] - anchors[:, :2]).T[None].contiguous())  # (1, 2, A)
        self.register_buffer("centres", scale * ((anchors[:, 2:] + anchors[:, :2]) / 2).T[None].contiguous())

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 4 + K, A) of ``images`` (N, 3, 64 · scale, 64 · scale) with values from 0 to 1."""
        pooled = images[:, :, self.scale // 2 :: self.scale, self.scale // 2 :: self.scale]
        maps = list(self.backbone((pooled - 0.5) / 0.25).values())
        shifts = _by_anchor(self.head.regression_head, maps, 4)
        shares = _by_anchor(self.head.classification_head, maps, len(SHAPE_NAMES)).softmax(1)[:, 1:]
        if self.extra:
            shares = torch.cat([shares, shares[:, :1] * 0.01], 1)
        parts = [shifts[:, :2] / 10 * self.sides + self.centres, (shifts[:, 2:] / 5).exp() * self.sides, shares]
        if self.rows:
            return torch.cat([each.transpose(1, 2) for each in parts], 2).transpose(1, 2)
        return torch.cat(parts, 1)


def _by_anchor(head: nn.Module, maps: list[Tensor], columns: int) -> Tensor:
    """Return what the convolutions of a head make of feature maps, (N, columns, A)."""
    found = [layer(each) for layer, each in zip(head.module_list, maps, strict=True)]
    split = [each.unflatten(1, (-1, columns)).flatten(3) for each in found]  # (N, anchors, columns, cells)
    return torch.cat([each.permute(0, 2, 3, 1).flatten(2) for each in split], 2)
