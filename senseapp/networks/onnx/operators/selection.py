"""Operators that pick or place elements: slices, gathers, scatters, one-hot, triangles, sorting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import FormNotRead, operator

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Slice")
def _slice_1(
    x: Tensor,
    *,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Tensor:
    return _slice(x, starts or [], ends or [], axes)


@operator("Slice", since=10, numbers=(1, 2, 3, 4))
def _slice(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    cuts = [slice(None)] * x.ndim
    for start, end, axis, step in zip(
        starts, ends, range(len(starts)) if axes is None else axes, steps or [1] * len(starts), strict=True
    ):
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


@operator("GatherElements")
def _gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


@operator("GatherND")
def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    if not batch_dims:
        return x[_index(x, indices)]
    flat = x.reshape(-1, *x.shape[batch_dims:])
    picked = indices.reshape(-1, *indices.shape[batch_dims:])
    image = torch.arange(len(flat), device=x.device).reshape(-1, *[1] * (picked.ndim - 2))
    found = flat[(image, *_index(flat[0], picked))]
    return found.reshape(*x.shape[:batch_dims], *found.shape[1:])


def _index(x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(_from_start(indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))


@operator("Scatter", "ScatterElements")
def _scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    positions = _from_start(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, positions, updates)
    return x.scatter_reduce(axis, positions, updates, _REDUCTIONS[reduction])


@operator("ScatterND")
def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    if reduction not in ("none", "add"):
        raise FormNotRead(f"its reduction “{reduction[:40]}” is not read.")
    return x.index_put(_index(x, indices), updates, accumulate=reduction == "add")


@operator("OneHot", numbers=(1,))
def _one_hot(indices: Tensor, depth: int | Sequence[int], values: Tensor, *, axis: int = -1) -> Tensor:
    length = int(depth[0] if isinstance(depth, Sequence) else depth)
    hot = _from_start(indices, length).unsqueeze(axis)
    positions = torch.arange(length, device=indices.device)
    shape = [1] * hot.ndim
    shape[axis] = length
    return torch.where(hot == positions.reshape(shape), values[1], values[0])


@operator("CumSum", numbers=(1,))
def _cumsum(x: Tensor, axis: int | Sequence[int], *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    axis = int(axis[0] if isinstance(axis, Sequence) else axis)
    x = x.flip(axis) if reverse else x
    total = x.cumsum(axis, dtype=x.dtype)
    total = total - x if exclusive else total
    return total.flip(axis) if reverse else total


@operator("Trilu", numbers=(1,))
def _trilu(x: Tensor, shift: int | Sequence[int] | None = None, *, upper: bool = True) -> Tensor:
    shift = int(shift[0] if isinstance(shift, Sequence) else shift or 0)
    return x.triu(shift) if upper else x.tril(shift)


@operator("TopK", numbers=(1,))
def _topk(
    x: Tensor, wanted: Sequence[int] | int | None = None, *, k: int = 0, axis: int = -1, largest: bool = True
) -> tuple[Tensor, ...]:
    if wanted is not None:
        k = int(wanted[0] if isinstance(wanted, Sequence) else wanted)
    return tuple(torch.topk(x, k, axis, largest=largest, sorted=True))
