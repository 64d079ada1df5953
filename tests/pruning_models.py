"""Tiny networks for the tests of structural pruning, and what must not change around a prune."""

from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import CompressionRequest
from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.networks.profile import profile_model


class Residual(nn.Module):
    """stem → (conv1 → conv2) + shortcut → depthwise → head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x)).relu()  # (N, 8, H, W)
        x = x + self.conv2(self.conv1(x).relu())
        scores: Tensor = self.head(self.depthwise(x).mean((2, 3)))
        return scores


class Concat(nn.Module):
    """Two convolutions side by side, joined before a norm over groups and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 8, 1)
        self.right = nn.Conv2d(3, 16, 1)
        self.mid = nn.Conv2d(24, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.grouped = nn.Conv2d(8, 12, 3, groups=4)
        self.head = nn.Linear(12 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.left(x), self.right(x)], 1)  # (N, 24, 4, 4)
        x = self.grouped(self.norm(self.mid(x.relu())))  # (N, 12, 2, 2)
        scores: Tensor = self.head(x.flatten(1))
        return scores


class ChannelShuffle(nn.Module):
    """Channels change places between two convolutions, where sizes alone do not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 1)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)[:, [1, 0, 3, 2, 5, 4, 7, 6]]
        scores: Tensor = self.head(self.conv2(x).mean((2, 3)))
        return scores


def images(size: int = 4, count: int = 2) -> Tensor:
    """Return random images (count, 3, size, size)."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def request_of(model: nn.Module, example: Tensor, seed: int = 0) -> CompressionRequest:
    """Ask for every layer of ``model``."""
    layers = profile_model(model, example).layers
    return CompressionRequest(model=model, layers=layers, calibration=(example,), seed=seed)


def pruning_of(model: nn.Module, example: Tensor, *, seed: int = 0, **config: Any) -> PruningCompressor:
    """Return the pruning compressor over all layers of ``model``."""
    return PruningCompressor(PruningConfig(**config), request_of(model, example, seed))


def footprint(model: nn.Module) -> dict[str, Any]:
    """Return everything about a model that a prune and its undo must leave identical, tensors by identity."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            plain = not isinstance(value, Tensor | nn.Module | dict)
            state[f"{name}.{key}"] = value if plain else id(value)
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                state[f"{name}.{key}"] = (id(tensor), tensor.data_ptr(), tensor.requires_grad, tensor.grad)
    return state
