"""The models and images that every tool is timed on."""

from __future__ import annotations

import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

MODELS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "mobilenetv3_large": "mobilenetv3_large_100",
    "vit_tiny": "vit_tiny_patch16_224",
}
LEVELS = {
    "sparsity": (50.0, 30.0, 40.0, 60.0, 70.0),
    "pruning": (30.0, 20.0, 40.0, 50.0, 60.0),
    "quantization": (4.0, 8.0, 6.0, 5.0, 3.0),
}
NUM_IMAGES = 32
BATCH_SIZE = 32


def model_of(case: str) -> nn.Module:
    """Return the network with fixed random weights; residual branches are not zeroed, so every layer matters."""
    torch.manual_seed(0)
    kwargs = {"zero_init_last": False} if case.startswith("resnet") else {}
    return timm.create_model(MODELS[case], num_classes=1000, **kwargs).eval()


def clock(device: torch.device) -> Callable[[], float]:
    """Return the seconds now, read once ``device`` has done what it was asked for."""

    def now() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    return now


def images_of(count: int = NUM_IMAGES) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 224, 224) and labels (N,), drawn once.

    Labels are among the first 300 of 1,000 classes: fasterai prunes the classifier too, and a loss needs their scores.
    """
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 224, 224, generator=generator), torch.randint(0, 300, (count,), generator=generator)
