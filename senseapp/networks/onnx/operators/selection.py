"""Operators that pick or place elements: slices, gathers, scatters, one-hot, triangles, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, FormNotRead, Function, operator

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Slice", numbers=(1, 2, 3, 4))
def _make_slice(at: Attributes) -> Function:
    if at.version < 10:
        return partial(_slice, starts=at.ints("starts") or [], ends=at.ints("ends") or [], axes=at.ints("axes"))
    return _slice


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
def _make_gather(at: Attributes) -> Function:
    return partial(_gather, axis=at.whole("axis", 0))


def _gather(x: Tensor, indices: Tensor | int, *, axis: int) -> Tensor:
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
def _make_gather_elements(at: Attributes) -> Function:
    return partial(_gather_elements, axis=at.whole("axis", 0))


def _gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


@operator("GatherND")
def _make_gather_nd(at: Attributes) -> Function:
    return partial(_gather_nd, batch_axes=at.whole("batch_dims", 0))


def _gather_nd(x: Tensor, indices: Tensor, *, batch_axes: int) -> Tensor:
    if not batch_axes:
        return x[_index(x, indices)]
    flat = x.reshape(-1, *x.shape[batch_axes:])
    picked = indices.reshape(-1, *indices.shape[batch_axes:])
    image = torch.arange(len(flat), device=x.device).reshape(-1, *[1] * (picked.ndim - 2))
    found = flat[(image, *_index(flat[0], picked))]
    return found.reshape(*x.shape[:batch_axes], *found.shape[1:])


def _index(x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(_from_start(indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))


@operator("Scatter", "ScatterElements")
def _make_scatter(at: Attributes) -> Function:
    return partial(_scatter, axis=at.whole("axis", 0), reduction=at.text("reduction", "none"))


def _scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str) -> Tensor:
    positions = _from_start(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, positions, updates)
    return x.scatter_reduce(axis, positions, updates, _REDUCTIONS[reduction])


@operator("ScatterND")
def _make_scatter_nd(at: Attributes) -> Function:
    return partial(_scatter_nd, reduction=at.text("reduction", "none"))


def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str) -> Tensor:
    if reduction not in ("none", "add"):
        raise FormNotRead(f"its reduction “{reduction[:40]}” is not read.")
    return x.index_put(_index(x, indices), updates, accumulate=reduction == "add")


@operator("OneHot", numbers=(1,))
def _make_one_hot(at: Attributes) -> Function:
    return partial(_one_hot, axis=at.whole("axis", -1))


def _one_hot(indices: Tensor, depth: int | Sequence[int], values: Tensor, *, axis: int) -> Tensor:
    length = int(depth[0] if isinstance(depth, Sequence) else depth)
    hot = _from_start(indices, length).unsqueeze(axis)
    positions = torch.arange(length, device=indices.device)
    shape = [1] * hot.ndim
    shape[axis] = length
    return torch.where(hot == positions.reshape(shape), values[1], values[0])


@operator("CumSum", numbers=(1,))
def _make_cumsum(at: Attributes) -> Function:
    return partial(_cumsum, exclusive=bool(at.whole("exclusive", 0)), backwards=bool(at.whole("reverse", 0)))


def _cumsum(x: Tensor, axis: int | Sequence[int], *, exclusive: bool, backwards: bool) -> Tensor:
    axis = int(axis[0] if isinstance(axis, Sequence) else axis)
    x = x.flip(axis) if backwards else x
    total = x.cumsum(axis, dtype=x.dtype)
    total = total - x if exclusive else total
    return total.flip(axis) if backwards else total


@operator("Trilu", numbers=(1,))
def _make_trilu(at: Attributes) -> Function:
    return partial(_trilu, upper=bool(at.whole("upper", 1)))


def _trilu(x: Tensor, shift: int | Sequence[int] | None = None, *, upper: bool) -> Tensor:
    shift = int(shift[0] if isinstance(shift, Sequence) else shift or 0)
    return x.triu(shift) if upper else x.tril(shift)


@operator("TopK", numbers=(1,))
def _make_topk(at: Attributes) -> Function:
    return partial(_topk, axis=at.whole("axis", -1), largest=bool(at.whole("largest", 1)), count=at.whole("k", 0))


def _topk(
    x: Tensor, wanted: Sequence[int] | int | None = None, *, axis: int, largest: bool, count: int
) -> tuple[Tensor, ...]:
    if wanted is not None:
        count = int(wanted[0] if isinstance(wanted, Sequence) else wanted)
    return tuple(torch.topk(x, count, axis, largest=largest, sorted=True))
