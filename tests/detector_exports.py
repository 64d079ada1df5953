"""The shapes detector of the tests as ONNX files of other layouts and input ranges, which nothing in them tells."""

import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from senseapp.data.demo_pictures import load_shapes
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.detectors import opened_detector
from tests.shapes_detector import SIDE, trained

NAMES = ("red", "green", "blue")
_PLAIN = Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.0,) * 3, std=(1.0,) * 3)


def columns(boxes: Tensor, shares: Tensor) -> Tensor:
    """Return centre, width, height and the shares of the three classes, (N, A, 7)."""
    centre, sides = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    return torch.cat([centre, sides, shares], dim=2)


def with_object(boxes: Tensor, shares: Tensor) -> Tensor:
    """Return the score of an object before classes that it is multiplied with, (N, A, 8)."""
    best = shares.amax(2, keepdim=True)
    return torch.cat([columns(boxes, shares)[..., :4], best, shares / (best + 1e-6)], dim=2)


def with_masks(boxes: Tensor, shares: Tensor) -> Tensor:
    """Return 32 coefficients behind the classes, (N, A, 39)."""
    return torch.cat([columns(boxes, shares), (torch.sin(boxes[..., :1] + torch.arange(32.0)) * 1.5)], dim=2)


def with_points(boxes: Tensor, shares: Tensor) -> Tensor:
    """Return four points with their visibility behind the classes, (N, A, 19)."""
    corners = boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]].unflatten(2, (4, 2))
    points = torch.cat([corners, torch.ones_like(corners[..., :1])], dim=3).flatten(2)
    return torch.cat([columns(boxes, shares), points], dim=2)


def with_angle(boxes: Tensor, shares: Tensor) -> Tensor:
    """Return an angle behind the classes, (N, A, 8)."""
    return torch.cat([columns(boxes, shares), 0.7 + torch.sin(boxes[..., :1]) / 4], dim=2)


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "columns": columns,
    "object": with_object,
    "masks": with_masks,
    "points": with_points,
    "angle": with_angle,
}


class Detector(nn.Module):
    """The trained detector behind a convolution that takes values of another range, in one of :data:`FORMS`."""

    def __init__(self, form: str, *, high: float = 1.0, anchors_last: bool = True) -> None:
        super().__init__()
        self.network = opened_detector(trained())
        self.form, self.anchors_last = form, anchors_last
        self.entry = nn.Conv2d(3, 3, 1)  # as no Mul or Sub, by which a range would be recognised
        with torch.no_grad():
            self.entry.weight.copy_(torch.eye(3)[:, :, None, None] * 4 / high)
            self.entry.bias.fill_(-2.0)  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the outputs in the form."""
        found = self.network(self.entry(images))
        if self.form == "pair":
            return found["softmax_logits"], found["boxes"] / SIDE
        rows = FORMS[self.form](found["boxes"], found["softmax_logits"].softmax(2)[..., 1:])
        return rows.transpose(1, 2) if self.anchors_last else rows


def exported_detector(path: Path, form: str, **how: float | bool) -> Path:
    """Write a :class:`Detector` as an ONNX file for one image at a time, and return its path."""
    names = ["logits", "boxes"] if form == "pair" else ["rows"]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Detector(form, **how).eval(),  # type: ignore[arg-type]
            (torch.zeros(1, 3, SIDE, SIDE),),
            file,
            dynamo=False,
            input_names=["images"],
            output_names=names,
        )
    path.write_bytes(file.getvalue())
    return path


def shape_pictures(folder: Path, count: int = 24, *, labelled: bool = True, names: Sequence[str] = NAMES) -> Path:
    """Write pictures of shapes with COCO annotations, numbered from 0, or without any."""
    images = load_shapes(_PLAIN, count, with_boxes=True)
    (folder / "images").mkdir(parents=True)
    listed, boxes = [], list[dict[str, object]]()
    for place in range(count):
        pixels = (images.batch(place, place + 1)[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{place:03}.png")
        listed.append({"id": place, "file_name": f"{place:03}.png", "width": SIDE, "height": SIDE})
        target = images.labels[place]  # type: ignore[index]
        for (left, top, right, bottom), label in zip(target["boxes"].tolist(), target["labels"].tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            boxes.append({"id": len(boxes), "image_id": place, "category_id": label - 1, "bbox": box, "iscrowd": 0})
    if labelled:
        categories = [{"id": number, "name": name} for number, name in enumerate(names)]
        content = {"images": listed, "annotations": boxes, "categories": categories}
        (folder / "instances.json").write_text(json.dumps(content))
    return folder
