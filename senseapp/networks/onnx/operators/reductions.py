"""Operators that reduce axes to one number each: sums, means, norms, extremes and their positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, Function, operator

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
def _make_reduction(at: Attributes) -> Function:
    return partial(
        _reduce,
        stored=at.ints("axes"),
        reduction=_REDUCTIONS[at.op],
        keep=bool(at.whole("keepdims", 1)),
        none_is_none=bool(at.whole("noop_with_empty_axes", 0)),
    )


def _reduce(
    x: Tensor,
    axes: Sequence[int] | None = None,
    *,
    stored: Sequence[int] | None,
    reduction: Reduction,
    keep: bool,
    none_is_none: bool,
) -> Tensor:
    axes = stored if axes is None else axes
    if not axes:
        if none_is_none:
            return x
        axes = range(x.ndim)
    return reduction(x, tuple(axes), keep)


@operator("ArgMax", "ArgMin")
def _make_position(at: Attributes) -> Function:
    return partial(
        _position,
        function=torch.argmax if at.op == "ArgMax" else torch.argmin,
        axis=at.whole("axis", 0),
        keep=bool(at.whole("keepdims", 1)),
        last=bool(at.whole("select_last_index", 0)),
    )


def _position(x: Tensor, *, function: Callable[..., Tensor], axis: int, keep: bool, last: bool) -> Tensor:
    if last:
        return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keep)
    return function(x, dim=axis, keepdim=keep)
