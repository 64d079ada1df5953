"""Operators that pick or place elements: slices, gathers, scatters, one-hot, triangles, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import enter, operator
from senseapp.networks.onnx.torch_graph import Node

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
Numbers = Sequence[int] | int


def _one(numbers: Numbers) -> int:
    """Return the number of an input that files give with one axis or with none."""
    return int(numbers[0] if isinstance(numbers, Sequence) else numbers)


@operator("Slice", since=10, numbers=(1, 2, 3, 4))
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


@operator("Slice")
def _slice_1(x: Tensor, *, starts: Any = (), ends: Any = (), axes: Any = None) -> Tensor:
    return _slice(x, starts, ends, axes)


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


@operator("ScatterND", lacks=_lacks)
def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    return x.index_put(_index(x, indices), updates, accumulate=reduction == "add")


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


@operator("Trilu", numbers=(1,))
def _trilu(x: Tensor, shift: Numbers | None = None, *, upper: bool = True) -> Tensor:
    return x.triu(_one(shift or 0)) if upper else x.tril(_one(shift or 0))


@operator("TopK", numbers=(1,))
def _topk(
    x: Tensor, wanted: Numbers | None = None, *, k: int = 0, axis: int = -1, largest: bool = True
) -> tuple[Tensor, ...]:
    return tuple(torch.topk(x, k if wanted is None else _one(wanted), axis, largest=largest, sorted=True))
