"""The network of the second demo, with its published weights."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from senseapp.networks.sources.demo import EFFICIENTNET, efficientnet_checkpoint, load_efficientnet

ARCHITECTURE = EFFICIENTNET
published_checkpoint = efficientnet_checkpoint


def load_network() -> nn.Module:
    """Return the network in ``eval()`` mode; a new one at each call."""
    return load_efficientnet().module.requires_grad_(True)


def write_checkpoint(path: Path) -> Path:
    """Write the weights to ``path``, .safetensors or .pth, under timm's names."""
    state = load_network().state_dict()
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path
