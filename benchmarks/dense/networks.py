"""Segmentation and detection networks at small sizes, and pictures of rectangles to train, measure and score them on.

Trained ones are kept in ``.cache/networks``. Pictures are numbered: those from :data:`TRAINED_FROM` on train.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from benchmarks.networks import CACHE
from senseapp.networks.sources.detectors import opened_detector
from senseapp.networks.sources.torchvision_networks import torchvision_names
from tests import shapes_detector

CLASSES = 4
TRAINED_FROM = 100_000
_MEAN, _STD = 0.5, 0.25
Targets = tuple[dict[str, Tensor], ...]


def names(task: str) -> list[str]:
    """Return torchvision's networks of a task."""
    return list(torchvision_names(task))


def network(name: str, side: int) -> nn.Module:
    """Return a network of torchvision with random weights for images of ``side`` pixels, as torchvision trains it."""
    torch.manual_seed(0)
    few: dict[str, Any] = {}
    if "rcnn" in name:
        few = {"rpn_post_nms_top_n_test": 40, "rpn_post_nms_top_n_train": 40, "box_batch_size_per_image": 16}
    module = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES, **few)
    if name in names("detection"):
        module.transform = GeneralizedRCNNTransform(side, side, [_MEAN] * 3, [_STD] * 3, fixed_size=(side, side))
    return module.eval()


def rectangles(first: int, count: int, side: int) -> tuple[Tensor, Targets]:
    """Return pictures of coloured rectangles on noise, (N, 3, side, side) as networks take them, and their boxes."""
    images, targets = shapes_detector.inputs(range(first, first + count))
    scale = side / shapes_detector.SIDE
    if scale != 1:
        images = nn.functional.interpolate(images, size=(side, side), mode="bilinear")
    return images, tuple({**each, "boxes": each["boxes"] * scale} for each in targets)


def masks_of(targets: Targets, side: int) -> Tensor:
    """Return the masks of rectangles, uint8 (N, side, side); later ones lie on top."""
    found = torch.zeros(len(targets), side, side, dtype=torch.uint8)
    for mask, target in zip(found, targets, strict=True):
        for box, label in zip(target["boxes"].round().int().tolist(), target["labels"].tolist(), strict=True):
            left, top, right, bottom = box
            mask[top:bottom, left:right] = label
    return found


def trained(name: str, side: int, *, steps: int, pictures: int, batch: int, rate: float = 2e-3) -> nn.Module:
    """Return a network trained on rectangles, with the statistics of pictures in its norms; detectors closed."""
    source = inspect.getsource(inspect.getmodule(trained))  # type: ignore[arg-type]
    key = hashlib.sha256(f"{source}{steps}{pictures}{batch}{rate}".encode()).hexdigest()[:8]
    path, module = CACHE / f"{name}-{side}-{key}.safetensors", network(name, side)
    if path.is_file():
        module.load_state_dict(load_file(path))
        return module
    images, targets = rectangles(TRAINED_FROM, pictures, side)
    loss = (
        _detection_loss(module, images, targets)
        if name in names("detection")
        else _pixel_loss(module, images, masks_of(targets, side))
    )
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * rate, total_steps=steps)
    module.train()
    for step in range(steps):
        found = loss(torch.randint(0, pictures, (batch,)))
        optimizer.zero_grad()
        found.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"{name}, step {step}: loss {float(found.detach()):.3f}", flush=True)
    _settle_norms(module, images, loss, batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, path)
    return module.eval()


Loss = Callable[[Tensor], Tensor]


def _pixel_loss(module: nn.Module, images: Tensor, masks: Tensor) -> Loss:
    def loss(chosen: Tensor) -> Tensor:
        scores = module(images[chosen])["out"]
        return nn.functional.cross_entropy(scores, masks[chosen].long(), weight=torch.tensor([1.0, 2.0, 2.0, 2.0]))

    return loss


def _detection_loss(module: nn.Module, images: Tensor, targets: Targets) -> Loss:
    pictures = images * _STD + _MEAN  # torchvision's own forward normalises

    def loss(chosen: Tensor) -> Tensor:
        indices = chosen.tolist()
        losses = module(
            [pictures[index] for index in indices], [_with_parts(targets[index], images.shape[-1]) for index in indices]
        )
        return torch.stack(list(losses.values())).sum()

    return loss


def _with_parts(target: dict[str, Tensor], side: int) -> dict[str, Tensor]:
    """Return a target with a mask and 17 keypoints of each box, its corners and middle, for heads that need them."""
    boxes = target["boxes"]
    masks = torch.cat([masks_of(({"boxes": box[None], "labels": torch.ones(1)},), side) for box in boxes])
    points = torch.stack(
        [boxes[:, [0, 1]] + share * (boxes[:, [2, 3]] - boxes[:, [0, 1]]) for share in torch.linspace(0.1, 0.9, 17)], 1
    )
    return {**target, "masks": masks, "keypoints": torch.cat([points, torch.ones(len(boxes), 17, 1)], 2)}


def _settle_norms(module: nn.Module, images: Tensor, loss: Loss, batch: int) -> None:
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    momenta = [each.momentum for each in norms]
    for each in norms:
        each.reset_running_stats()
        each.momentum = None  # a mean over all batches
    with torch.no_grad():
        for chosen in torch.arange(min(len(images), 20 * batch)).split(batch):
            loss(chosen)
    for each, momentum in zip(norms, momenta, strict=True):
        each.momentum = momentum


def opened(name: str, module: nn.Module) -> nn.Module:
    """Return what senseapp measures: a detector with open heads, or the network as it is."""
    module = opened_detector(module) if name in names("detection") else module
    return module.eval().requires_grad_(False)


def with_statistics(name: str, module: nn.Module, images: Tensor) -> nn.Module:
    """Return an untrained network with the statistics of images in its norms, or early layers would change nothing."""
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    for each in norms:
        each.momentum = 1.0
    module.train()
    with torch.no_grad():
        if name not in names("detection"):
            module(images)
        else:
            maps = module.backbone(images)  # type: ignore[operator]
            if hasattr(module, "head"):
                module.head(list(maps.values()))  # type: ignore[operator]
    return module.eval()
