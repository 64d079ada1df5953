"""A small network that tells colours apart, pixel by pixel, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from senseapp.core.errors import UnknownModel
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.records.spec import ModelSpec

NUM_CLASSES, SIDE = 3, 32
COLOURS = ((0.5, 0.5, 0.5), (0.9, 0.2, 0.2), (0.2, 0.3, 0.9))
"""Of the background and of the two kinds of rectangles."""


def segmentation_network(*, seed: int = 0) -> nn.Module:
    """Return a network of random layers, (N, 3, H, W) to (N, 3, H, W), whose last one is fitted to colours."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        )
    head = nn.Conv2d(16, NUM_CLASSES, 1)
    noise = 0.1 * torch.randn(64, 3, 8, 8, generator=generator)
    classes = torch.randint(0, NUM_CLASSES, (64,), generator=generator)
    images = (torch.tensor(COLOURS)[classes][:, :, None, None] + noise - 0.5) / 0.5
    body.eval()
    with torch.no_grad():
        features = body(images)[:, :, 2:6, 2:6].permute(0, 2, 3, 1).reshape(-1, 16)
        wanted = 6 * torch.eye(NUM_CLASSES)[classes].repeat_interleave(16, 0) - 2
        columns = torch.cat([features, features.new_ones(len(features), 1)], 1)
        fitted = torch.linalg.lstsq(columns, wanted).solution
        head.weight.copy_(fitted[:-1].t()[:, :, None, None])
        head.bias.copy_(fitted[-1])  # type: ignore[union-attr]
    return nn.Sequential(body, head)


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return it as a source of networks does."""
    if spec.name != "colours":
        raise UnknownModel(f"There is no network called {spec.name!r}.")
    report("Making a network")
    return LoadedModel(
        module=segmentation_network().eval().requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.5,) * 3),
        num_classes=NUM_CLASSES,
        pretrained=False,
        class_names=("background", "red", "blue"),
    )


def scene(seed: int) -> tuple[Tensor, Tensor]:
    """Return a picture, uint8 (H, W, 3), with some rectangles on noise, and the mask of their classes, uint8 (H, W)."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
    for kind in (1, 2):
        top, left = torch.randint(0, SIDE - 12, (2,), generator=generator).tolist()
        mask[top : top + 12, left : left + 10] = kind
    picture = torch.tensor(COLOURS)[mask.long()] + 0.1 * torch.randn(SIDE, SIDE, 3, generator=generator)
    return (picture.clamp(0, 1) * 255).round().to(torch.uint8), mask
