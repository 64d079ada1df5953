"""Operators that change or make shapes: reshape, transpose, concatenate, expand, pad, and constants of a shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, enter, operator

Axes = Sequence[int]
enter(
    {
        "Transpose": lambda x, *, perm=None: x.permute(tuple(reversed(range(x.ndim)) if perm is None else perm)),
        "Concat": lambda *tensors, axis=1: torch.cat(tensors, dim=axis),
        "EyeLike": lambda x, *, k=0: torch.ones_like(x).triu(k).tril(k),
        "Size": lambda x: torch.tensor(x.numel(), dtype=torch.int64, device="cpu" if x.is_meta else x.device),
    }
)
enter(
    {
        "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape))),  # type: ignore[no-untyped-call]
        "Tile": lambda x, repeats: x.repeat(tuple(repeats)),
    },
    numbers=(1,),
)


@operator("Reshape", numbers=(1,))
def _reshape(x: Tensor, shape: Axes, *, allowzero: bool = False) -> Tensor:
    lengths = [x.shape[axis] if not length and not allowzero else length for axis, length in enumerate(shape)]
    return x.reshape(lengths)


@operator("Flatten")
def _flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if axis == 1 and x.ndim > 1:
        return x.flatten(1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


@operator("Squeeze", numbers=(1,))
def _squeeze(x: Tensor, given: Axes | None = None, *, axes: Any = None) -> Tensor:
    axes = axes if given is None else given
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@operator("Unsqueeze", numbers=(1,))
def _unsqueeze(x: Tensor, given: Axes | int | None = None, *, axes: Any = ()) -> Tensor:
    wanted = [given] if isinstance(given, int) else axes if given is None else given
    rank = x.ndim + len(wanted)
    for axis in sorted(each % rank for each in wanted):
        x = x.unsqueeze(axis)
    return x


@operator("Split", numbers=(1,))
def _split(
    x: Tensor, lengths: Axes | None = None, *, axis: int = 0, split: Any = None, num_outputs: int = 1
) -> tuple[Tensor, ...]:
    lengths = split if lengths is None else lengths
    # The last part is shorter where equal ones do not divide the axis.
    found = torch.split(x, -(-x.shape[axis] // num_outputs) if lengths is None else list(lengths), dim=axis)
    # What prunes channels counts the readers of a split, and takes each for a part: so each part has one reader.
    return tuple(torch.ops.aten.alias(each) for each in found)


@operator("ExpandLike")
def _expand_like(x: Tensor, like: Tensor, *, axis: int = 0) -> Tensor:
    """Not of ONNX: repeat what a file holds for one image for the images of ``like``."""
    lengths = list(x.shape)
    lengths[axis] = like.shape[axis]
    return x.expand(lengths)


@operator("Shape")
def _shape(x: Tensor, *, start: int = 0, end: int = 1 << 30) -> Tensor:
    device = "cpu" if x.is_meta else x.device  # a shape is known where its tensor is not
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=device)


def _prod_of_first(numbers: Mapping[int, Any]) -> float:
    return float(math.prod(numbers[0]))


@operator("ConstantOfShape", numbers=(0,), elements=_prod_of_first)
def _constant_of_shape(shape: Axes, *, value: Any = None) -> Tensor:
    value = torch.zeros(1) if value is None else value
    return torch.as_tensor(value).reshape(()).expand(tuple(shape)).clone()


def _range_elements(numbers: Mapping[int, Any]) -> float:
    start, limit, step = (numbers[index] for index in range(3))
    return float(max(0.0, (limit - start) / step)) if step else math.inf


@operator("Range", numbers=(0, 1, 2), elements=_range_elements)
def _range(start: float, limit: float, step: float) -> Tensor:
    return torch.arange(start, limit, step)


@operator("DepthToSpace")
def _depth_to_space(x: Tensor, *, blocksize: int = 1, mode: str = "DCR") -> Tensor:
    if mode != "DCR":
        return F.pixel_shuffle(x, blocksize)
    blocks = torch.unflatten(x, 1, (blocksize**2, -1)).transpose(1, 2)  # (N, C', b², H, W)
    return F.pixel_shuffle(blocks.flatten(1, 2), blocksize)


@operator("SpaceToDepth")
def _space_to_depth(x: Tensor, *, blocksize: int = 1) -> Tensor:
    blocks = torch.unflatten(F.pixel_unshuffle(x, blocksize), 1, (x.shape[1], -1))  # (N, C, b², H, W)
    return blocks.transpose(1, 2).flatten(1, 2)


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


@operator("Pad")
def _pad_1(x: Tensor, *, pads: Any = None, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(x, pads, value, mode=mode)


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
