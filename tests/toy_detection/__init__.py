"""A task from outside: object detection, boxes with a class. Everything that an engineer writes for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from senseapp.core.errors import InvalidInput
from senseapp.descriptions import ModelSource
from senseapp.records.spec import ModelSpec
from senseapp.tasks import Task
from senseapp.tasks.annotations import AnnotationFiles, AnnotationReader, Listing, PerImage, PictureGeometry
from senseapp.tasks.base import refuse_output
from tests.toy_detection.metrics import AP, DIVERGENCE, directions_of, predictions_of
from tests.toy_rectangles import CLASSES, SIDE, loaded, scene

if TYPE_CHECKING:
    from torch import Tensor, nn

    from senseapp.metrics.predictions import Predictions
    from senseapp.networks.loaded import LoadedModel
    from senseapp.tasks.directions import ScanDirections

_LEAST_AREA = 4.0  # pixels of the network's input that are left of a box; smaller ones are left out
_CELLS, _HALF_BOX, _REACH = 4, 6.0, 4.0


@dataclass(frozen=True, kw_only=True)
class BoxReader(AnnotationReader):
    """One file of boxes for all pictures, as COCO writes them: left, top, width and height in pixels."""

    def find(self, listing: Listing) -> AnnotationFiles:
        """Return the boxes of each picture that the file lists; of these, pictures may have none."""
        choices = tuple(sorted(path for path in listing.others if path.endswith(".json")))
        if not choices:
            return AnnotationFiles()
        path = listing.chosen or choices[0]
        content = json.loads(listing.read(path))
        boxes: dict[int, list[list[float]]] = {image["id"]: [] for image in content["images"]}
        for each in content["annotations"]:
            x, y, width, height = map(float, each["bbox"])
            boxes[each["image_id"]].append([x, y, x + width, y + height, float(each["category_id"])])
        names = [image["file_name"] for image in content["images"]]
        pictures = listing.named(names, path)
        found = {
            picture: (image["width"], image["height"], boxes[image["id"]])
            for picture, image in zip(pictures, content["images"], strict=True)
            if picture is not None
        }
        lost = len(names) - len(found)
        notes = (f"{path} lists {lost} pictures that are not there.",) if lost else ()
        return AnnotationFiles(parsed=found, names=CLASSES, notes=notes, choices=choices)

    def place(self, annotation: Any, geometry: PictureGeometry) -> Any:
        """Return boxes float32 (n, 4), as left, top, right, bottom, and their classes, int64 (n,)."""
        import torch

        width, height, rows = annotation
        if (width, height) != geometry.size:
            raise ValueError(
                f"in {width} × {height} pixels, and the picture has {geometry.size[0]} × {geometry.size[1]}"
            )
        values = np.asarray(rows, dtype=np.float64).reshape(-1, 5)
        boxes = geometry.boxes(values[:, :4])
        kept = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) >= _LEAST_AREA
        return {
            "boxes": torch.from_numpy(boxes[kept]).float(),
            "labels": torch.from_numpy(values[kept, 4]).long(),
        }


@dataclass(frozen=True, kw_only=True)
class Detection(Task):
    """Boxes, their classes and scores: a list of one dictionary for each image, as torchvision's detectors return."""

    def check_output(self, model_output: object, num_images: int) -> None:
        """Refuse what is no list of boxes, labels and scores."""
        is_list = isinstance(model_output, list) and len(model_output) == num_images
        if not is_list or not all({"boxes", "labels", "scores"} <= set(each) for each in model_output):  # type: ignore[attr-defined]
            raise refuse_output(f"a list of {num_images} dictionaries of boxes", model_output, self.name)

    def output(self, model_output: object) -> Tensor:
        """Return the boxes, as shares of the side, and the logit of the score of each cell, (N, cells, 5)."""
        import torch

        images = cast("list[dict[str, Tensor]]", model_output)
        return torch.stack([torch.cat([each["boxes"] / SIDE, each["scores"].logit()[:, None]], 1) for each in images])

    def predictions(self, model_output: object, *, most_bytes: int | None = None) -> Predictions:
        """Return boxes and logits of all cells, and the detections of each image."""
        images = cast("list[dict[str, Tensor]]", model_output)
        return predictions_of(self.output(images), [each["labels"] for each in images])

    def directions(self, output: Tensor, targets: Any, signs: Tensor, most: int) -> ScanDirections:
        """Return two random directions."""
        return directions_of(output, signs)

    def num_outputs(self, output: object) -> int:
        """Return the number of classes."""
        return len(CLASSES)

    def check_targets(self, targets: PerImage, num_images: int, num_outputs: int) -> None:
        """Refuse classes that the model does not know."""
        if len(targets) != num_images:
            raise InvalidInput(f"{num_images} images need as many lists of boxes, got {len(targets)}.")
        highest = max((int(each["labels"].max()) for each in targets if len(each["labels"])), default=0)
        if highest >= num_outputs:
            raise InvalidInput(f"Boxes must be of classes below {num_outputs}, got {highest}.")

    def score(self, output: Tensor) -> Tensor:
        """Return the sum of each image's highest score."""
        return output[..., 4].sigmoid().amax(dim=1).sum()

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """Return the sum over the boxes that are there of how far the score of the nearest one found is below 1."""
        import torch

        parts = [output.sum() * 0.0]
        for found, wanted in zip(output, targets, strict=True):
            if len(wanted["boxes"]):
                centres = _centres(wanted["boxes"] / SIDE)
                nearest = torch.cdist(centres, _centres(found[:, :4].detach())).argmin(dim=1)
                parts.append((1.0 - found[nearest, 4].sigmoid()).sum())
        return torch.stack(parts).sum()

    def output_text(self, output: Any, names: Sequence[str]) -> str:
        """Return the classes of the boxes that were found."""
        return self._listed(output["detections"][:, 1].long().tolist(), names)

    def target_text(self, target: Any, names: Sequence[str]) -> str:
        """Return the classes of the boxes."""
        return self._listed(target["labels"].tolist(), names)

    def _listed(self, labels: Sequence[int], names: Sequence[str]) -> str:
        return ", ".join(self.output_name(number, names) for number in sorted(labels)) or "nothing"


def _centres(boxes: Tensor) -> Tensor:
    return (boxes[:, :2] + boxes[:, 2:]) / 2


BOXES = BoxReader(words=("boxes", "boxes"))
DETECTION = Detection(
    name="toy_detection",
    label="Toy detection",
    output_title="Boxes",
    label_words=("box", "boxes"),
    label_places="A JSON file of boxes beside the pictures",
    label_help="A JSON file that lists the boxes of all pictures, as COCO writes it.",
    score_label="Highest score",
    shown_metric=AP.name,
    extra_metrics=(AP, DIVERGENCE),
    one_tensor=False,
    annotations=BOXES,
)
SOURCE = ModelSource(
    name="toy_detectors",
    label="Toy detection networks",
    loader="tests.toy_detection:load",
    names=("rectangles",),
    help="A network of a test.",
)


def network(seed: int = 0) -> nn.Module:
    """Return a detector made by hand: one box and its scores for each of 4 × 4 cells, from red and green in them."""
    import torch
    from torch import nn

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 8, 3, padding=1)
            self.pool = nn.AvgPool2d(SIDE // _CELLS)
            self.head = nn.Conv2d(8, 2 + len(CLASSES), 1)  # offsets of the centre, then scores

        def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
            found = self.head(self.pool(self.second(self.first(images).relu()).relu())).flatten(2)  # (N, 5, cells)
            places = (torch.arange(_CELLS, device=images.device) + 0.5) * (SIDE / _CELLS)
            centres = torch.stack(torch.meshgrid(places, places, indexing="xy"), dim=-1).reshape(-1, 2)
            centres = centres + _REACH * found[:, :2].transpose(1, 2).tanh()  # (N, cells, 2)
            boxes = torch.cat([centres - _HALF_BOX, centres + _HALF_BOX], dim=2).clamp(0, SIDE)
            scores, labels = found[:, 2:].softmax(dim=1)[:, 1:].max(dim=1)
            return [
                {"boxes": box, "labels": label + 1, "scores": score}
                for box, label, score in zip(boxes, labels, scores, strict=True)
            ]

    torch.manual_seed(seed)
    module = Detector()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.1)
        module.first.weight[:2] += torch.tensor([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5]])[:, :, None, None] / 9
        module.second.weight[range(2), range(2), 1, 1] += 1.0
        module.head.weight[[3, 4], [0, 1], 0, 0] += 6.0
        module.head.bias[2] += 4.0
    return module.eval()


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return the network; see :class:`ModelSource`."""
    return loaded(spec, network(), report)


def picture_files(count: int = 8, size: tuple[int, int] = (SIDE, SIDE)) -> dict[str, bytes]:
    """Return pictures, ``images/003.png``, and the file of their boxes, ``boxes.json``."""
    from PIL import Image

    from tests.pictures import encoded  # imports torch, which a task does not need to be named

    files, images, boxes = {}, [], []
    for number in range(count):
        found = scene(number, size)
        files[f"images/{number:03d}.png"] = encoded(Image.fromarray(found.picture))
        images.append({"id": number, "file_name": f"{number:03d}.png", "width": size[0], "height": size[1]})
        for kind, left, top, right, bottom in found.rectangles:
            box = [left, top, right - left, bottom - top]
            boxes.append({"image_id": number, "category_id": kind, "bbox": box})
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASSES)]
    files["boxes.json"] = json.dumps({"images": images, "annotations": boxes, "categories": categories}).encode()
    return files
