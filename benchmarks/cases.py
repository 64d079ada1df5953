"""The models and images that every tool is timed on."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

MODELS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "mobilenetv3_large": "mobilenetv3_large_100",
    "vit_tiny": "vit_tiny_patch16_224",
}
ZEROS = 50  # percent of each layer's weights
NUM_IMAGES = 32


def model_of(case: str) -> nn.Module:
    """Return the network with fixed random weights; residual branches are not zeroed, so every layer matters."""
    torch.manual_seed(0)
    kwargs = {"zero_init_last": False} if case.startswith("resnet") else {}
    return timm.create_model(MODELS[case], num_classes=1000, **kwargs).eval()


def images() -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 224, 224) and labels (N,), drawn once."""
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randn(NUM_IMAGES, 3, 224, 224, generator=generator)
    return pictures, torch.randint(0, 300, (NUM_IMAGES,), generator=generator)
