"""Operators that change or make shapes: reshape, transpose, concatenate, expand, pad, and constants of a shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, Function, operator

Axes = Sequence[int]


@operator("Reshape", numbers=(1,))
def _make_reshape(at: Attributes) -> Function:
    return partial(_reshape, allow_zero=bool(at.whole("allowzero", 0)))


def _reshape(x: Tensor, shape: Axes, *, allow_zero: bool) -> Tensor:
    lengths = [x.shape[axis] if not length and not allow_zero else length for axis, length in enumerate(shape)]
    return x.reshape(lengths)


@operator("Flatten")
def _make_flatten(at: Attributes) -> Function:
    return partial(_flatten, axis=at.whole("axis", 1))


def _flatten(x: Tensor, *, axis: int) -> Tensor:
    if axis == 1 and x.ndim > 1:
        return x.flatten(1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


@operator("Transpose")
def _make_transpose(at: Attributes) -> Function:
    return partial(_transpose, order=at.ints("perm"))


def _transpose(x: Tensor, *, order: Axes | None) -> Tensor:
    return x.permute(tuple(order) if order is not None else tuple(reversed(range(x.ndim))))


@operator("Squeeze", numbers=(1,))
def _make_squeeze(at: Attributes) -> Function:
    return partial(_squeeze, stored=at.ints("axes"))


def _squeeze(x: Tensor, axes: Axes | None = None, *, stored: Axes | None = None) -> Tensor:
    axes = stored if axes is None else axes
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@operator("Unsqueeze", numbers=(1,))
def _make_unsqueeze(at: Attributes) -> Function:
    return partial(_unsqueeze, stored=at.ints("axes"))


def _unsqueeze(x: Tensor, axes: Axes | int | None = None, *, stored: Axes | None = None) -> Tensor:
    axes = [axes] if isinstance(axes, int) else (axes if axes is not None else stored or [])
    rank = x.ndim + len(axes)
    for axis in sorted(each % rank for each in axes):
        x = x.unsqueeze(axis)
    return x


@operator("Concat")
def _make_concat(at: Attributes) -> Function:
    return partial(_concat, axis=at.whole("axis", 1))


def _concat(*tensors: Tensor, axis: int) -> Tensor:
    return torch.cat(tensors, dim=axis)


@operator("Split", numbers=(1,))
def _make_split(at: Attributes) -> Function:
    return partial(_split, axis=at.whole("axis", 0), stored=at.ints("split"), parts=at.outputs)


def _split(x: Tensor, lengths: Axes | None = None, *, axis: int, stored: Axes | None, parts: int) -> tuple[Tensor, ...]:
    lengths = stored if lengths is None else lengths
    if lengths is None:
        part = -(-x.shape[axis] // parts)  # the last one is shorter where they do not divide
        found = torch.split(x, part, dim=axis)
    else:
        found = torch.split(x, list(lengths), dim=axis)
    # What prunes channels counts the readers of a split, and takes each for a part: so each part has one reader.
    return tuple(torch.ops.aten.alias(each) for each in found)


@operator("Expand", numbers=(1,))
def _make_expand(_at: Attributes) -> Function:
    return _expand


def _expand(x: Tensor, shape: Axes) -> Tensor:
    rank = max(x.ndim, len(shape))
    lengths = zip((1,) * (rank - x.ndim) + tuple(x.shape), (1,) * (rank - len(shape)) + tuple(shape), strict=True)
    return x.expand([mine if wanted == 1 else wanted for mine, wanted in lengths])


@operator("ExpandLike")
def _make_expand_like(at: Attributes) -> Function:
    """Not of ONNX: repeat the one image of a constant for the images of ``like``, to free a batch that is baked in."""
    return partial(_expand_like, axis=at.whole("axis", 0), like_axis=at.whole("like_axis", 0), unit=at.whole("unit", 1))


def _expand_like(x: Tensor, like: Tensor, *, axis: int, like_axis: int, unit: int) -> Tensor:
    lengths = list(x.shape)
    lengths[axis] = like.shape[like_axis] // unit
    return x.narrow(axis, 0, 1).expand(lengths)


@operator("Roll")
def _make_roll(at: Attributes) -> Function:
    """Not of ONNX: what files write as two parts of an axis in the other order."""
    return partial(torch.roll, shifts=at.whole("shift", 0), dims=at.whole("axis", 0))


@operator("Tile", numbers=(1,))
def _make_tile(_at: Attributes) -> Function:
    return _tile


def _tile(x: Tensor, repeats: Axes) -> Tensor:
    return x.repeat(tuple(repeats))


@operator("Shape")
def _make_shape(at: Attributes) -> Function:
    return partial(_shape, start=at.whole("start", 0), end=at.whole("end", 1 << 30))


def _shape(x: Tensor, *, start: int, end: int) -> Tensor:
    device = "cpu" if x.is_meta else x.device  # a shape is known where its tensor is not
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=device)


@operator("Size")
def _make_size(_at: Attributes) -> Function:
    return _size


def _size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device="cpu" if x.is_meta else x.device)


def _prod_of_first(_at: Attributes, numbers: Mapping[int, Any]) -> float:
    return float(math.prod(numbers[0]))


@operator("ConstantOfShape", numbers=(0,), elements=_prod_of_first)
def _make_constant_of_shape(at: Attributes) -> Function:
    value = at.values.get("value")
    return partial(_constant_of_shape, value=torch.zeros(1) if value is None else value)


def _constant_of_shape(shape: Axes, *, value: Tensor) -> Tensor:
    return value.reshape(()).expand(tuple(shape)).clone()


def _range_elements(_at: Attributes, numbers: Mapping[int, Any]) -> float:
    start, limit, step = (numbers[index] for index in range(3))
    return float(max(0.0, (limit - start) / step)) if step else math.inf


@operator("Range", numbers=(0, 1, 2), elements=_range_elements)
def _make_range(_at: Attributes) -> Function:
    return _range


def _range(start: float, limit: float, step: float) -> Tensor:
    return torch.arange(start, limit, step)


@operator("EyeLike")
def _make_eye_like(at: Attributes) -> Function:
    return partial(_eye_like, shift=at.whole("k", 0))


def _eye_like(x: Tensor, *, shift: int) -> Tensor:
    return torch.ones_like(x).triu(shift).tril(shift)


@operator("DepthToSpace")
def _make_depth_to_space(at: Attributes) -> Function:
    return partial(_depth_to_space, block=at.whole("blocksize", 1), rows_first=at.text("mode", "DCR") == "DCR")


def _depth_to_space(x: Tensor, *, block: int, rows_first: bool) -> Tensor:
    if not rows_first:
        return F.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    blocks = x.reshape(n, block, block, c // block**2, h, w)  # (N, b, b, C', H, W)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)


@operator("SpaceToDepth")
def _make_space_to_depth(at: Attributes) -> Function:
    return partial(_space_to_depth, block=at.whole("blocksize", 1))


def _space_to_depth(x: Tensor, *, block: int) -> Tensor:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)


@operator("Pad", numbers=(1, 2, 3))
def _make_pad(at: Attributes) -> Function:
    stored = at.ints("pads")
    return partial(_pad, mode=at.text("mode", "constant"), stored=stored, filling=at.number("value", 0.0))


def _pad(
    x: Tensor,
    pads: Axes | None = None,
    value: float | Sequence[float] | None = None,
    axes: Axes | None = None,
    *,
    mode: str,
    stored: Axes | None,
    filling: float,
) -> Tensor:
    pads = stored if pads is None else pads
    if pads is None:
        raise FormNotRead("it does not say by how much it pads.")
    value = value[0] if isinstance(value, Sequence) else value
    padded = range(x.ndim) if axes is None else [each % x.ndim for each in axes]
    ends = dict(zip(padded, zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True), strict=True))
    if mode == "constant":
        flat = [length for axis in reversed(range(x.ndim)) for length in ends.get(axis, (0, 0))]
        return F.pad(x, flat, value=filling if value is None else value)
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
