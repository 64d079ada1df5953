"""Equalisation of a layer's input channels, so that one range for all of them gives each enough steps.

A channel is divided by a factor by which the weights that read it are multiplied, which changes nothing in float.

Source: Xiao et al. 2023, "SmoothQuant", equations 3 and 4 with α = ½.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.base import INPUT, LayerWeight
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.networks.profile import CONVOLUTIONS

MOST_RATIO = 64.0  # of the largest to the least factor, which channels of zeros would make infinite


@dataclass(frozen=True, slots=True)
class ChannelFactors:
    """Divisors of a layer's input channels, (C,), by which the weights that read them are multiplied."""

    weight: LayerWeight
    factors: Tensor

    def of_inputs(self, values: Tensor) -> Tensor:
        """Return the factors in a shape that multiplies ``values``, an input of the layer."""
        axis = _channel_axis(self.weight.module) % values.dim()
        return self.factors.to(values).reshape(-1, *(1,) * (values.dim() - 1 - axis))

    def of_weights(self) -> Tensor:
        """Return the factors in the shape of the weight."""
        parameter, layout = self.weight.parameter.detach(), self.weight.layout
        split = layout.split(parameter)
        factors = self.factors.to(parameter).reshape(layout.groups, 1, -1, 1, 1, 1)
        return layout.merge(factors.expand_as(split), parameter)


def equalising(
    model: nn.Module, weights: Mapping[str, LayerWeight], batches: Sequence[Tensor]
) -> dict[str, ChannelFactors]:
    """Return by layer the factors that give its input channels and the weights that read them equal maxima.

    Layers whose inputs are 0, not finite or read by several weights of one module have none.
    """
    chosen = {layer: weight for layer, weight in weights.items() if weight.inputs_read == slice(None)}
    largest: dict[str, Tensor] = {}

    def watch(layer: str, inputs: tuple[Tensor, ...]) -> None:
        axis = _channel_axis(chosen[layer].module)
        for values in inputs:
            found = values.detach().abs().movedim(axis, 0).flatten(1).amax(1).float()
            largest[layer] = found.maximum(largest.get(layer, found))

    watchers = [(weight.module, partial(watch, layer)) for layer, weight in chosen.items()]
    observe_inputs(model, watchers, batches)
    return {
        layer: ChannelFactors(chosen[layer], _factors(chosen[layer], found))
        for layer, found in largest.items()
        if bool(found.isfinite().all()) and float(found.amax()) > 0
    }


def _factors(weight: LayerWeight, inputs: Tensor) -> Tensor:
    """Return √(r / w) of each channel, with r the maximum of its inputs and w that of its weights."""
    split = weight.layout.split(weight.parameter.detach().float().abs())
    read = split.amax([axis for axis in range(1, split.dim()) if axis != INPUT]).flatten()
    return (_bounded(inputs) / _bounded(read).to(inputs)).sqrt()


def _bounded(values: Tensor) -> Tensor:
    return values.clamp_min(float(values.amax()) / MOST_RATIO).clamp_min(torch.finfo(values.dtype).tiny)


def _channel_axis(module: nn.Module) -> int:
    return 1 if isinstance(module, CONVOLUTIONS) else -1
