"""A layer as a matrix product of rows of inputs with its weight, at sampled positions of its output.

A convolution multiplies the patch under its kernel at each position; with G groups, each has its own matrix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from timm.layers import Conv2dSame, pad_same
from timm.layers import Linear as TimmLinear
from torch import Tensor, nn
from torch.nn import functional

_ROWS_PER_INPUT = 32  # rows per input of a layer for fitting its weights
_ROWS = (512, 8192)  # bounds: fewer are a noisy estimate, and more only take time
_Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_FORWARDS = (
    *(nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward, Conv2dSame.forward),
    *(nn.Linear.forward, TimmLinear.forward),
    nn.MultiheadAttention.forward,
)


@dataclass(frozen=True, slots=True)
class LayerProduct:
    """Product that ``module`` computes: Linear, Conv1d to Conv3d or attention's in-projection.

    ``weight_shape`` is the shape of its weight.
    """

    module: nn.Module
    weight_shape: tuple[int, ...]

    @staticmethod
    def obstacle(module: nn.Module) -> str:
        """Return why ``module`` is no such product; empty if it is one."""
        return "" if type(module).forward in _FORWARDS else f"{type(module).__name__} multiplies in a way of its own"

    @property
    def groups(self) -> int:
        """Number of matrices, G."""
        return int(getattr(self.module, "groups", 1))

    @property
    def width(self) -> int:
        """Number of inputs that each output sums over, K."""
        return math.prod(self.weight_shape[1:])

    def positions(self, images: int) -> int:
        """Return the number of positions to sample in each of ``images`` images for the moments of the inputs."""
        return math.ceil(min(max(_ROWS_PER_INPUT * self.width, _ROWS[0]), _ROWS[1]) / images)

    def matrix(self, weight: Tensor) -> Tensor:
        """Return ``weight``, in the module's shape, as (G, O/G, K)."""
        return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)

    def weight(self, matrix: Tensor, like: Tensor) -> Tensor:
        """Invert :meth:`matrix`, with the shape, dtype and strides of ``like``."""
        return torch.empty_like(like).copy_(matrix.reshape(like.shape))

    def rows(self, values: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        """Return the input rows at up to ``positions`` random positions of each image: (G, S, K)."""
        if isinstance(self.module, _Convolution):
            return self._patches(self.module, values, positions, generator)
        flat = values.reshape(values.shape[0], -1, values.shape[-1])  # (N, L, K)
        images, chosen = _chosen(len(flat), flat.shape[1], positions, generator)
        return flat[images, chosen].reshape(1, -1, values.shape[-1])

    def _patches(self, module: _Convolution, values: Tensor, positions: int, generator: torch.Generator) -> Tensor:
        windows = _padded(module, values)  # (N, C, H, W)
        for axis, (kernel, stride, dilation) in enumerate(
            zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
        ):
            windows = windows.unfold(axis, dilation * (kernel - 1) + 1, stride)
        spatial = windows.dim() // 2 - 1
        spread: tuple[Any, ...] = tuple(slice(None, None, dilation) for dilation in module.dilation)
        windows = windows[(..., *spread)]
        sizes = tuple(windows.shape[2 : 2 + spatial])
        images, chosen = _chosen(len(values), math.prod(sizes), positions, generator)
        places: tuple[Any, ...] = (images, slice(None), *torch.unravel_index(chosen, sizes))
        picked = windows[places]  # (N, P, C, *kernel)
        return picked.reshape(picked.shape[0] * picked.shape[1], self.groups, -1).transpose(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSums:
    """Sums over rows x of a layer's inputs and rows x₀ of the same layer's inputs in another network, by group.

    Attributes:
        count: number of rows.
        second: Σ x xᵀ, (G, K, K).
        cross: Σ (x₀ − x) xᵀ, (G, K, K), if it was requested.
        mean, original: means of x and x₀, (G, K).
    """

    count: int
    second: Tensor
    cross: Tensor
    mean: Tensor
    original: Tensor

    @classmethod
    def of(
        cls,
        product: LayerProduct,
        original: Sequence[Tensor],
        inputs: Sequence[Tensor],
        generator: Callable[[], torch.Generator],
        *,
        cross: bool,
    ) -> Self:
        """Sum over batches; ``generator`` returns a fresh generator, from which positions are drawn."""
        positions, draws = product.positions(sum(map(len, inputs))), (generator(), generator())
        shape = product.groups, product.width, product.width
        second, crossed = (inputs[0].new_zeros(shape) for _ in range(2))
        mean, before = (inputs[0].new_zeros(shape[:2]) for _ in range(2))
        count = 0
        for was, values in zip(original, inputs, strict=True):
            wanted, rows = product.rows(was, positions, draws[0]), product.rows(values, positions, draws[1])
            second.baddbmm_(rows.transpose(1, 2), rows)
            if cross:
                crossed.baddbmm_((wanted - rows).transpose(1, 2), rows)
            mean, before, count = mean + rows.sum(1), before + wanted.sum(1), count + rows.shape[1]
        return cls(count=count, second=second, cross=crossed, mean=mean / count, original=before / count)


def _chosen(images: int, available: int, wanted: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return indices of images, (N, 1), and for each image of ``wanted`` of ``available`` positions, (N, P)."""
    if available <= wanted:
        places = torch.arange(available).expand(images, available)
    else:
        places = torch.rand(images, available, generator=generator).topk(wanted, 1).indices
    return torch.arange(images)[:, None], places


def _padded(module: _Convolution, values: Tensor) -> Tensor:
    """Return ``values``, (N, C, ...), with the padding of the convolution ``module``."""
    if isinstance(module, Conv2dSame):
        kernel_size, stride, spread = map(list, (module.kernel_size, module.stride, module.dilation))
        padded: Tensor = pad_same(values, kernel_size, stride, spread)
        return padded
    sides: list[int] = []  # padding before and after, last axis first
    for axis, (kernel, dilation) in reversed(list(enumerate(zip(module.kernel_size, module.dilation, strict=True)))):
        both = 0 if isinstance(module.padding, str) else 2 * module.padding[axis]
        both = dilation * (kernel - 1) if module.padding == "same" else both
        sides += [both // 2, both - both // 2]
    return functional.pad(values, sides, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
