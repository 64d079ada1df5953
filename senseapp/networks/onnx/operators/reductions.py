"""Operators that reduce axes to one number each: sums, means, norms, extremes and their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import operator

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((each % x.ndim for each in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.mean(x, axes, keepdim=keep)


def _largest(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.amax(x, axes, keepdim=keep)


def _smallest(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.amin(x, axes, keepdim=keep)


def _sum_of_sizes(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum(x.abs(), axes, keep)


def _sum_of_squares(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum(x * x, axes, keep)


def _length(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum_of_squares(x, axes, keep).sqrt()


def _log_of_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return _sum(x, axes, keep).log()


def _log_of_sum_of_powers(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.logsumexp(x, axes, keepdim=keep)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": _sum_of_sizes,
    "ReduceL2": _length,
    "ReduceLogSum": _log_of_sum,
    "ReduceLogSumExp": _log_of_sum_of_powers,
    "ReduceMax": _largest,
    "ReduceMean": _mean,
    "ReduceMin": _smallest,
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_of_squares,
}


@operator(*_REDUCTIONS, numbers=(1,))
def _reduce(
    x: Tensor,
    given: Sequence[int] | None = None,
    *,
    op: str = "",
    axes: Sequence[int] | None = None,
    keepdims: bool = True,
    noop_with_empty_axes: bool = False,
) -> Tensor:
    axes = axes if given is None else given
    if not axes:
        if noop_with_empty_axes:
            return x
        axes = range(x.ndim)
    return _REDUCTIONS[op](x, tuple(axes), keepdims)


@operator("ArgMax", "ArgMin")
def _position(
    x: Tensor, *, op: str = "", axis: int = 0, keepdims: bool = True, select_last_index: bool = False
) -> Tensor:
    function = torch.argmax if op == "ArgMax" else torch.argmin
    if select_last_index:
        return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keepdims)
    return function(x, dim=axis, keepdim=keepdims)
