"""Running a layer once for each of several levels, within one pass over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.layers import CallAxes, map_tensors, tensors_in, wrapped_forwards
from senseapp.transforms import Prepared


class LevelSplit:
    """Stands in for the forwards of one target's modules, and runs each level's share of the batch for itself.

    Args:
        axes: where each call's tensors count images.
        levels: one for each share, in the order of the batch.
    """

    def __init__(self, axes: Sequence[CallAxes], levels: Sequence[Prepared]) -> None:
        self._axes = axes
        self._levels = levels
        self._inside = False

    def installed(self, model: nn.Module, names: frozenset[str]) -> AbstractContextManager[None]:
        """Stand in inside the block."""

        def wrap(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            return self._split(name, module, forward) if name in names else forward

        return wrapped_forwards(model, wrap)

    def _split(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        calls = cycle([call for call in self._axes if call.module == name])  # a pass makes all of them, in this order

        def split(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return forward(*args, **kwargs)
            call = next(calls)
            shares = _shares((args, kwargs), call.inputs, len(self._levels))
            self._inside = True
            try:
                outputs = [self._run(module, *share) for share in zip(self._levels, shares, strict=True)]
            finally:
                self._inside = False
            return _joined(outputs, call.outputs)

        return split

    @staticmethod
    def _run(module: nn.Module, level: Prepared, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        with level.active():  # which may hook the module, so that its forward alone would not do
            return module(*arguments[0], **arguments[1])


def _shares(arguments: Any, axes: Sequence[int | None], count: int) -> list[Any]:
    """Cut the tensors of ``arguments`` along their batch axes into ``count`` shares.

    A tensor that comes several times does so in each share: attention takes a faster path where it can see that.
    """
    tensors = list(tensors_in(arguments))
    cut = {
        id(tensor): [tensor] * count if axis is None else tensor.chunk(count, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    }
    return [map_tensors(arguments, partial(_share, cut, place)) for place in range(count)]


def _share(cut: Mapping[int, Sequence[Tensor]], place: int, tensor: Tensor) -> Tensor:
    return cut[id(tensor)][place]


def _joined(outputs: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """Join the tensors of ``outputs``, which are alike, along their batch axes."""
    joined = (
        torch.cat(tensors, dim=axis)
        for tensors, axis in zip(zip(*map(tensors_in, outputs), strict=True), axes, strict=True)
        if axis is not None
    )
    return map_tensors(outputs[0], lambda _: next(joined))
