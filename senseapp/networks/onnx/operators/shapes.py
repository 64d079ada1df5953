"""Operators that change or make shapes, and those that pick or place elements: reshape, pad, slice, gather, scatter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, enter, operator
from senseapp.networks.onnx.torch_graph import Node

Axes = Sequence[int]
enter(
    {
        "Transpose": lambda x, *, perm=None: x.permute(tuple(reversed(range(x.ndim)) if perm is None else perm)),
        "Concat": lambda *tensors, axis=1: torch.cat(tensors, dim=axis),
        "EyeLike": lambda x, *, k=0: torch.ones_like(x).triu(k).tril(k),
        # Not of ONNX: what a file holds for one image, repeated for the images of ``like``.
        "ExpandLike": lambda x, like, *, axis=0: x.expand(*x.shape[:axis], like.shape[axis], *x.shape[axis + 1 :]),
        "Flatten": lambda x, *, axis=1: (
            x.flatten(1) if axis == 1 and x.ndim > 1 else x.reshape(math.prod(x.shape[:axis]), -1)
        ),
        "Size": lambda x: torch.tensor(x.numel(), dtype=torch.int64, device="cpu" if x.is_meta else x.device),
    }
)
enter(
    {
        "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape))),  # type: ignore[no-untyped-call]
        "Reshape": lambda x, shape, *, allowzero=False: x.reshape(
            [x.shape[axis] if not length and not allowzero else length for axis, length in enumerate(shape)]
        ),
        "Squeeze": lambda x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(axes)),
        "Tile": lambda x, repeats: x.repeat(tuple(repeats)),
        "TopK": lambda x, k, *, axis=-1, largest=True: tuple(torch.topk(x, _one(k), axis, largest, sorted=True)),
        "Trilu": lambda x, k=None, *, upper=True: x.triu(_one(k or 0)) if upper else x.tril(_one(k or 0)),
    },
    numbers=(1,),
)


@operator("Unsqueeze", numbers=(1,))
def _unsqueeze(x: Tensor, axes: Axes | int) -> Tensor:
    axes = [axes] if isinstance(axes, int) else axes
    rank = x.ndim + len(axes)
    for axis in sorted(each % rank for each in axes):
        x = x.unsqueeze(axis)
    return x


@operator("Split", numbers=(1,))
def _split(x: Tensor, split: Axes | None = None, *, axis: int = 0, num_outputs: int = 1) -> tuple[Tensor, ...]:
    # The last part is shorter where equal ones do not divide the axis.
    found = torch.split(x, -(-x.shape[axis] // num_outputs) if split is None else list(split), dim=axis)
    # What prunes channels counts the readers of a split, and takes each for a part: so each part has one reader.
    return tuple(torch.ops.aten.alias(each) for each in found)


@operator("Shape")
def _shape(x: Tensor, *, start: int = 0, end: int = 1 << 30) -> Tensor:
    device = "cpu" if x.is_meta else x.device  # a shape is known where its tensor is not
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=device)


@operator("ConstantOfShape", numbers=(0,), elements=lambda numbers: math.prod(numbers[0]))
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


@operator("Pad", numbers=(1, 2, 3))
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


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
Numbers = Sequence[int] | int


def _one(numbers: Numbers) -> int:
    """Return the number of an input that files give with one axis or with none."""
    return int(numbers[0] if isinstance(numbers, Sequence) else numbers)


@operator("Slice", numbers=(1, 2, 3, 4))
def _slice(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    cuts = [slice(None)] * x.ndim
    axes, steps = range(len(starts)) if axes is None else axes, steps or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            cuts[axis] = slice(*slice(start, end, step).indices(x.shape[axis]))  # none counts from the end
        else:  # torch has no negative steps
            taken = range(*slice(start, end, step).indices(x.shape[axis]))
            x = x.index_select(axis, torch.tensor(list(taken), dtype=torch.int64, device=x.device))
    return x[tuple(cuts)]


@operator("Gather", scalars=(1,))
def _gather(x: Tensor, indices: Tensor | int, *, axis: int = 0) -> Tensor:
    if isinstance(indices, int):
        return x.select(axis, indices)
    axis %= x.ndim
    positions = _from_start(indices, x.shape[axis]).reshape(-1)
    return x.index_select(axis, positions).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _from_start(indices: Tensor, length: int) -> Tensor:
    """Return positions counted from the start; negative ones count from the end."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + length, indices)


enter({"GatherElements": lambda x, indices, *, axis=0: torch.gather(x, axis, _from_start(indices, x.shape[axis]))})


@operator("GatherND")
def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    if not batch_dims:
        return x[_index(x, indices)]
    flat, picked = x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1)
    image = torch.arange(len(flat), device=x.device).reshape(-1, *[1] * (picked.ndim - 2))
    return torch.unflatten(flat[(image, *_index(flat[0], picked))], 0, x.shape[:batch_dims])


def _index(x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(_from_start(indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))


@operator("Scatter", "ScatterElements")
def _scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    positions = _from_start(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, positions, updates)
    return x.scatter_reduce(axis, positions, updates, _REDUCTIONS[reduction])


def _lacks(node: Node) -> str:
    reduction = node.attributes.get("reduction", "none")
    return "" if reduction in ("none", "add") else f"its reduction “{reduction[:40]}” is not read."


enter(
    {
        "ScatterND": lambda x, indices, updates, *, reduction="none": x.index_put(
            _index(x, indices), updates, accumulate=reduction == "add"
        )
    },
    lacks=_lacks,
)


@operator("OneHot", numbers=(1,))
def _one_hot(indices: Tensor, depth: Numbers, values: Tensor, *, axis: int = -1) -> Tensor:
    length = _one(depth)
    hot = _from_start(indices, length).unsqueeze(axis)
    positions = torch.arange(length, device=indices.device)
    shape = [length if each == axis % hot.ndim else 1 for each in range(hot.ndim)]
    return torch.where(hot == positions.reshape(shape), values[1], values[0])


@operator("CumSum", numbers=(1,))
def _cumsum(x: Tensor, axis: Numbers, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    axis = _one(axis)
    x = x.flip(axis) if reverse else x
    total = x.cumsum(axis, dtype=x.dtype)
    total = total - x if exclusive else total
    return total.flip(axis) if reverse else total
