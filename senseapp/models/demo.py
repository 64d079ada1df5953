"""The network that ships with senseapp: a small timm ResNet that reads handwritten digits."""

from __future__ import annotations

import safetensors.torch
import timm
from torch import nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.site import SITE
from senseapp.models.loaded import LoadedModel, Preprocessing

DEMO_WEIGHTS = SITE / "assets" / "demo.safetensors"
"""Trained by ``scripts/train_demo.py``."""

DEMO_PREPROCESSING = Preprocessing(input_shape=(1, 32, 32), mean=(0.304,), std=(0.323,))
"""Mean and standard deviation of the training pictures, rounded."""

_CLASS_NAMES = tuple("0123456789")


def build_demo_network() -> nn.Module:
    """Return the demo architecture with random weights: (N, 1, 32, 32) to class scores (N, 10).

    A residual network of three stem convolutions, four stages of two basic blocks, three shortcut convolutions
    and a classifier: 23 compressible layers and 222 thousand weights. Its widths are in proportion to the task, so
    that some layers are fragile at moderate compression, as in networks that people deploy. Half as wide, it reads
    the digits as well, but each channel weighs so much that the quick scan's linear estimates rank layers worse.
    """
    network = timm.create_model(
        "resnet18",
        channels=(16, 24, 40, 64),
        stem_type="deep",
        stem_width=8,
        zero_init_last=False,
        in_chans=1,
        num_classes=len(_CLASS_NAMES),
    )
    network.maxpool = nn.Identity()  # made for 224 pixels; 32 have no resolution to spare
    return network


def load_demo_model() -> LoadedModel:
    """Return the trained demo network.

    Raises:
        InvalidCheckpoint: the weights file that belongs to senseapp is missing.
    """
    if not DEMO_WEIGHTS.is_file():
        raise InvalidCheckpoint(
            f"The demo's weights are missing: expected the file {DEMO_WEIGHTS.name} in the folder assets. "
            "Restore it from the repository, or train it again with scripts/train_demo.py."
        )
    network = build_demo_network()
    network.load_state_dict(safetensors.torch.load_file(DEMO_WEIGHTS), strict=True)
    return LoadedModel(
        module=network.eval().requires_grad_(False),
        title="demo",
        preprocessing=DEMO_PREPROCESSING,
        num_classes=len(_CLASS_NAMES),
        pretrained=True,
        class_names=_CLASS_NAMES,
    )
