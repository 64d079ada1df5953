"""Operators that change or make shapes: reshape, transpose, concatenate, expand, pad, and constants of a shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, operator

Axes = Sequence[int]


@operator("Reshape", numbers=(1,))
def _reshape(x: Tensor, shape: Axes, *, allowzero: bool = False) -> Tensor:
    lengths = [x.shape[axis] if not length and not allowzero else length for axis, length in enumerate(shape)]
    return x.reshape(lengths)


@operator("Flatten")
def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if axis == 1 and x.ndim > 1:
        return x.flatten(1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


@operator("Transpose")
def _transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(perm) if perm is not None else tuple(reversed(range(x.ndim))))


@operator("Squeeze", numbers=(1,))
def _squeeze(x: Tensor, given: Axes | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    axes = axes if given is None else given
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@operator("Unsqueeze", numbers=(1,))
def _unsqueeze(x: Tensor, given: Axes | int | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    wanted = [given] if isinstance(given, int) else (given if given is not None else axes or [])
    rank = x.ndim + len(wanted)
    for axis in sorted(each % rank for each in wanted):
        x = x.unsqueeze(axis)
    return x


@operator("Concat")
def _concat(*tensors: Tensor, axis: int = 1) -> Tensor:
    return torch.cat(tensors, dim=axis)


@operator("Split", numbers=(1,))
def _split(
    x: Tensor,
    lengths: Axes | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int = 1,
) -> tuple[Tensor, ...]:
    lengths = split if lengths is None else lengths
    if lengths is None:
        part = -(-x.shape[axis] // num_outputs)  # the last one is shorter where they do not divide
        found = torch.split(x, part, dim=axis)
    else:
        found = torch.split(x, list(lengths), dim=axis)
    # What prunes channels counts the readers of a split, and takes each for a part: so each part has one reader.
    return tuple(torch.ops.aten.alias(each) for each in found)


@operator("Expand", numbers=(1,))
def _expand(x: Tensor, shape: Axes) -> Tensor:
    rank = max(x.ndim, len(shape))
    lengths = zip((1,) * (rank - x.ndim) + tuple(x.shape), (1,) * (rank - len(shape)) + tuple(shape), strict=True)
    return x.expand([mine if wanted == 1 else wanted for mine, wanted in lengths])


@operator("ExpandLike")
def _expand_like(x: Tensor, like: Tensor, *, axis: int = 0, like_axis: int = 0) -> Tensor:
    """Not of ONNX: repeat the one image of a constant for the images of ``like``, to free a batch that is baked in."""
    lengths = list(x.shape)
    lengths[axis] = like.shape[like_axis]
    return x.narrow(axis, 0, 1).expand(lengths)


@operator("Roll")
def _roll(x: Tensor, *, shift: int = 0, axis: int = 0) -> Tensor:
    """Not of ONNX: what files write as two parts of an axis in the other order."""
    return torch.roll(x, shift, axis)


@operator("Tile", numbers=(1,))
def _tile(x: Tensor, repeats: Axes) -> Tensor:
    return x.repeat(tuple(repeats))


@operator("Shape")
def _shape(x: Tensor, *, start: int = 0, end: int = 1 << 30) -> Tensor:
    device = "cpu" if x.is_meta else x.device  # a shape is known where its tensor is not
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=device)


@operator("Size")
def _size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device="cpu" if x.is_meta else x.device)


def _prod_of_first(numbers: Mapping[int, Any]) -> float:
    return float(math.prod(numbers[0]))


@operator("ConstantOfShape", numbers=(0,), elements=_prod_of_first)
def _constant_of_shape(shape: Axes, *, value: Tensor | None = None) -> Tensor:
    value = torch.zeros(1) if value is None else value
    return value.reshape(()).expand(tuple(shape)).clone()


def _range_elements(numbers: Mapping[int, Any]) -> float:
    start, limit, step = (numbers[index] for index in range(3))
    return float(max(0.0, (limit - start) / step)) if step else math.inf


@operator("Range", numbers=(0, 1, 2), elements=_range_elements)
def _range(start: float, limit: float, step: float) -> Tensor:
    return torch.arange(start, limit, step)


@operator("EyeLike")
def _eye_like(x: Tensor, *, k: int = 0) -> Tensor:
    return torch.ones_like(x).triu(k).tril(k)


@operator("DepthToSpace")
def _depth_to_space(x: Tensor, *, blocksize: int = 1, mode: str = "DCR") -> Tensor:
    block = blocksize
    if mode != "DCR":
        return F.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    blocks = x.reshape(n, block, block, c // block**2, h, w)  # (N, b, b, C', H, W)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)


@operator("SpaceToDepth")
def _space_to_depth(x: Tensor, *, blocksize: int = 1) -> Tensor:
    n, c, h, w = x.shape
    block = blocksize
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)


@operator("Pad")
def _pad_1(x: Tensor, *, pads: Sequence[int] | None = None, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(x, pads, value, mode=mode)


@operator("Pad", since=11, numbers=(1, 2, 3))
def _pad(
    x: Tensor,
    pads: Axes | None,
    value: float | Sequence[float] | None = None,
    axes: Axes | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    if pads is None:
        raise FormNotRead("it does not say by how much it pads.")
    value = value[0] if isinstance(value, Sequence) else value
    padded = range(x.ndim) if axes is None else [each % x.ndim for each in axes]
    ends = dict(zip(padded, zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True), strict=True))
    if mode == "constant":
        flat = [length for axis in reversed(range(x.ndim)) for length in ends.get(axis, (0, 0))]
        return F.pad(x, flat, value=value or 0.0)
    for axis, (before, after) in ends.items():
        if before or after:
            x = x.index_select(axis, _padded_positions(x.shape[axis], before, after, mode).to(x.device))
    return x


def _padded_positions(length: int, before: int, after: int, mode: str) -> Tensor:
    """Return which positions of an axis of ``length`` the padded axis shows; negative pads crop."""
    wanted = torch.arange(-before, length + after)
    if mode == "edge":
        return wanted.clamp(0, length - 1)
    if mode == "wrap":
        return wanted % length
    if mode != "reflect":
        raise FormNotRead(f"its mode “{mode[:40]}” is not one of ONNX.")
    period = max(1, 2 * (length - 1))
    wanted = wanted % period
    return torch.minimum(wanted, period - wanted)
