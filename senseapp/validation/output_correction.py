"""Repair of networks without BatchNorm: give each compressed layer its old output mean and spread, per channel.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction (2019), section 4.2,
with means (and spreads) measured on calibration images instead of derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from senseapp.results import LayerProfile

__all__ = ["correct_outputs"]

_MOST_SCALE = 2.0  # a channel that lost more of its spread than this is noise, which scaling would only raise


class _Seen(Exception):
    """Ends a pass once the output that was waited for is known."""


class _ChannelMoments:
    """Sums over images and positions of a layer's output, by channel."""

    def __init__(self, module: nn.Module) -> None:
        self._axis = 1 if isinstance(module, _ConvNd) else -1
        self._count = 0
        self._sum: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def update(self, output: Tensor) -> None:
        """Add an output (N, C, H, W) of a convolution, or (..., C) of a product."""
        rows = output.detach().movedim(self._axis, -1).flatten(0, -2).double()  # (positions, C)
        self._count += len(rows)
        self._sum = self._sum + rows.sum(0)
        self._squares = self._squares + rows.square().sum(0)

    @property
    def mean_and_spread(self) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation per channel, float64 (C,); None if nothing was seen."""
        if not isinstance(self._sum, Tensor) or not isinstance(self._squares, Tensor):
            return None
        mean = self._sum / self._count
        return mean, (self._squares / self._count - mean.square()).clamp_min(0).sqrt()


def correct_outputs(
    model: nn.Module,
    reference: nn.Module,
    batches: Sequence[Tensor],
    layers: Sequence[LayerProfile],
    *,
    scale: bool = True,
) -> list[str]:
    """Fold into the bias (and weight) of each layer what brings its output back to that of ``reference``.

    Layers are taken in execution order, each with the ones before it corrected already. Zeros stay zeros, and
    weights that lie on a grid per output channel stay on one. A layer without a bias, or that is read without being
    called, is left out.

    Args:
        model: the compressed network; changed in place.
        reference: the network before, with the same modules and shapes.
        batches: (N, C, H, W) on the device of both.
        layers: the compressed layers, in execution order.
        scale: correct the spread as well as the mean; only true where each channel may have a scale of its own.

    Returns:
        The names of the layers that were corrected.
    """
    wanted = [layer for layer in layers if _is_correctable(model.get_submodule(layer.name))]
    goals = {layer.name: _ChannelMoments(reference.get_submodule(layer.name)) for layer in wanted}
    shared = _shared_weights(model)
    corrected = []
    with torch.no_grad():
        _observe(reference, {name: moments.update for name, moments in goals.items()}, batches)
        for layer in wanted:
            module = model.get_submodule(layer.name)
            goal, found = goals[layer.name].mean_and_spread, _moments_of(model, layer.name, batches)
            if goal is None or found is None:
                continue
            may_scale = scale and not isinstance(module, _ConvTransposeNd) and id(module.weight) not in shared
            _fold(module, goal, found, scale=may_scale)
            corrected.append(layer.name)
    return corrected


def _is_correctable(module: nn.Module) -> bool:
    return isinstance(module, (_ConvNd, nn.Linear)) and isinstance(module.bias, nn.Parameter)


def _shared_weights(model: nn.Module) -> set[int]:
    """Return the identities of parameters that several modules own; scaling one would change another's output."""
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return {identity for identity, count in owners.items() if count > 1}


def _moments_of(model: nn.Module, name: str, batches: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    moments = _ChannelMoments(model.get_submodule(name))
    _observe(model, {name: moments.update}, batches, only_that=True)
    return moments.mean_and_spread


def _fold(module: Any, goal: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], *, scale: bool) -> None:
    """Multiply by goal spread / found spread where that is meant, and shift so that the means agree."""
    (goal_mean, goal_spread), (mean, spread) = goal, found
    factor = torch.ones_like(mean)
    if scale:
        alive = spread > 1e-6 * goal_spread
        factor = torch.where(alive, goal_spread / spread.clamp_min(1e-300), 1.0).clamp(1 / _MOST_SCALE, _MOST_SCALE)
        factor = torch.where(goal_spread > 0, factor, 1.0)
    if not bool((factor.isfinite() & goal_mean.isfinite() & mean.isfinite()).all()):
        return
    weight, bias = module.weight.data, module.bias.data
    weight.mul_(factor.to(weight.dtype).view(-1, *[1] * (weight.dim() - 1)))
    bias.copy_(bias.double() * factor + goal_mean - mean * factor)


def _observe(
    model: nn.Module, observers: dict[str, Callable[[Tensor], None]], batches: Sequence[Tensor], only_that: bool = False
) -> None:
    with _watching(model, observers, only_that):
        for batch in batches:
            try:
                model(batch)
            except _Seen:
                continue


@contextmanager
def _watching(model: nn.Module, observers: dict[str, Callable[[Tensor], None]], only_that: bool) -> Iterator[None]:
    """Show outputs to ``observers``; ``only_that`` ends the pass at the first one."""

    def hook_of(observe: Callable[[Tensor], None]) -> Callable[..., None]:
        def after(_module: nn.Module, _args: object, output: Tensor) -> None:
            observe(output)
            if only_that:
                raise _Seen

        return after

    handles = [model.get_submodule(name).register_forward_hook(hook_of(observe)) for name, observe in observers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
