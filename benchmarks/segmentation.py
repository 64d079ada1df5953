"""LR-ASPP of torchvision, and pictures of rectangles with their masks, for benchmarks of dense outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from senseapp.tasks import SEGMENTATION
from tests.toy_rectangles import scene

CLASSES, SIDE = 3, 64
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def scenes(first: int, count: int, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Return pictures, float32 (N, 3, side, side), and their masks, uint8 (N, side, side)."""
    found = [scene(number, (side, side)) for number in range(first, first + count)]
    pictures = torch.stack([torch.from_numpy(each.picture) for each in found]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (_MEAN, _STD))
    return (pictures - mean) / std, torch.stack([torch.from_numpy(each.mask) for each in found])


def network() -> nn.Module:
    """Return LR-ASPP with random weights."""
    spec = ModelSpec(
        library="torchvision", name="lraspp_mobilenet_v3_large", num_classes=CLASSES, task=SEGMENTATION.name
    )
    return load_model(spec).module


def with_statistics_of(module: nn.Module, images: Tensor) -> nn.Module:
    """Return the network with the statistics of ``images`` in its norms: else what early layers do is rounded away."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.reset_running_stats()
            each.momentum = None
    module.train()
    with torch.no_grad():
        for part in images.split(32):
            module(part)
    return module.eval()
