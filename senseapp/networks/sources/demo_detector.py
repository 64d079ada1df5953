"""The network of the detection demo: a small SSD of torchvision for coloured rectangles on photographs."""

from __future__ import annotations

from collections import OrderedDict

import safetensors.torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD

from senseapp.core.errors import InvalidCheckpoint
from senseapp.core.files import SITE
from senseapp.networks.loaded import LoadedModel, Preprocessing, seeded_weights
from senseapp.networks.sources.detectors import opened_detector
from senseapp.records.spec import SHAPE_NAMES, SHAPE_SIDE

DETECTOR_WEIGHTS = SITE / "assets" / "shapes_detector.safetensors"
"""Trained by ``scripts/train_demo_detector.py``."""
DETECTOR = "shapes_detector"
"""Name of the demo."""
_MEAN, _STD = 0.5, 0.25  # of each channel, as scripts/train_demo_detector.py trained with


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

    Raises:
        InvalidCheckpoint: the weights file is missing from senseapp's assets.
    """
    if not DETECTOR_WEIGHTS.is_file():
        raise InvalidCheckpoint(
            f"The weights of the detection demo are missing: expected the file {DETECTOR_WEIGHTS.name} in the folder "
            "assets. Restore it from the repository, or train it again with scripts/train_demo_detector.py."
        )
    network = build_detector()
    network.load_state_dict(safetensors.torch.load_file(DETECTOR_WEIGHTS), strict=True)
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
