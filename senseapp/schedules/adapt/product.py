"""A layer as a product of rows of inputs with a matrix of weights, at some positions of its output.

A convolution multiplies, at each position, the patch under its kernel; with G groups, each has a matrix of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional

_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_FORWARDS = (
    *(nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, Conv2dSame.forward),
    nn.MultiheadAttention.forward,
)


@dataclass(frozen=True, slots=True)
class LayerProduct:
    """How ``module``, Linear, Conv1d to Conv3d or attention's in-projection, multiplies what it is given.

    ``weight_shape`` is that of its weight.
    """

    module: nn.Module
    weight_shape: tuple[int, ...]

    @staticmethod
    def obstacle(module: nn.Module) -> str:
        """Return why ``module`` is no such product, or an empty sentence."""
        return "" if type(module).forward in _FORWARDS else f"{type(module).__name__} multiplies in a way of its own"

    @property
    def groups(self) -> int:
        """The number of matrices."""
        return int(getattr(self.module, "groups", 1))

    def matrix(self, weight: Tensor) -> Tensor:
        """Return ``weight``, as the module holds it, as (G, O/G, K)."""
        return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)

    def weight(self, matrix: Tensor, like: Tensor) -> Tensor:
        """Undo :meth:`matrix`: the shape, dtype and strides of ``like``."""
        return torch.empty_like(like).copy_(matrix.reshape(like.shape))

    def rows(self, given: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        """Return what is multiplied at up to ``positions`` random positions of each image: (G, S, K)."""
        if isinstance(self.module, _Convolution):
            return self._patches(self.module, given, positions, generator)
        flat = given.reshape(given.shape[0], -1, given.shape[-1])  # (N, L, K)
        images, chosen = _chosen(len(flat), flat.shape[1], positions, generator)
        return flat[images, chosen].reshape(1, -1, given.shape[-1])

    def outputs(self, output: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        """Return what the layer puts out where :meth:`rows` draws with an equal generator: (N, P, O)."""
        convolved = isinstance(self.module, _Convolution)
        flat = output.flatten(2).transpose(1, 2) if convolved else output.reshape(len(output), -1, output.shape[-1])
        images, chosen = _chosen(len(flat), flat.shape[1], positions, generator)
        return flat[images, chosen]

    def _patches(self, module: _Convolution, given: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        windows = _padded(module, given)  # (N, C, H, W)
        for axis, (kernel, stride, dilation) in enumerate(
            zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
        ):
            windows = windows.unfold(axis, dilation * (kernel - 1) + 1, stride)
        spatial = windows.dim() // 2 - 1
        spread: tuple[Any, ...] = tuple(slice(None, None, dilation) for dilation in module.dilation)
        windows = windows[(..., *spread)]
        sizes = tuple(windows.shape[2 : 2 + spatial])
        images, chosen = _chosen(len(given), math.prod(sizes), positions, generator)
        places: tuple[Any, ...] = (images, slice(None), *torch.unravel_index(chosen, sizes))
        picked = windows[places]  # (N, P, C, *kernel)
        return picked.reshape(picked.shape[0] * picked.shape[1], self.groups, -1).transpose(0, 1)


def _chosen(images: int, available: int, wanted: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return indices of images (N, 1) and, for each, of ``wanted`` of its ``available`` positions, (N, P)."""
    if available <= wanted:
        places = torch.arange(available).expand(images, available)
    else:
        places = torch.rand(images, available, generator=generator).topk(wanted, 1).indices
    return torch.arange(images)[:, None], places


def _padded(module: _Convolution, given: Tensor) -> Tensor:
    """Return ``given`` (N, C, ...) as the convolution ``module`` pads it."""
    sides: list[int] = []  # before and after, of the last axis first
    settings = zip(given.shape[2:], module.kernel_size, module.stride, module.dilation, strict=True)
    for axis, (size, kernel, stride, dilation) in reversed(list(enumerate(settings))):
        if isinstance(module, Conv2dSame):
            both = max(0, (math.ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
        elif module.padding == "same":
            both = dilation * (kernel - 1)
        else:
            both = 0 if isinstance(module.padding, str) else 2 * module.padding[axis]
        sides += [both // 2, both - both // 2]
    zeros = isinstance(module, Conv2dSame) or module.padding_mode == "zeros"
    return functional.pad(given, sides, mode="constant" if zeros else module.padding_mode)
