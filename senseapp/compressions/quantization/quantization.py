"""Quantization: one layer's weight, and on request its input, are rounded to few bits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from senseapp.compressions import QuantizationConfig, base
from senseapp.compressions.quantization.activations import OBSERVERS, MinMaxObserver, changed_inputs, observe_inputs
from senseapp.compressions.quantization.grid import GRIDS, fake_quantize_input, rounded_weight, scale_of
from senseapp.core.errors import InvalidDataset, MeasurementFailed


class QuantizationCompressor(base.WeightCompressor):
    """A :class:`~senseapp.compressions.base.Compressor` that rounds a weight, and on request the layer's input.

    Inputs get one scale and zero point per tensor; query, key and value of ``nn.MultiheadAttention`` share theirs.
    Their ranges come from the calibration images, in one pass for all layers.
    """

    def __init__(self, config: QuantizationConfig, request: base.CompressionRequest) -> None:
        self._config = config
        self._weights, self._reasons = base.find_weights(request.model, request.layers)
        self._observers: dict[str, MinMaxObserver] = {}
        if config.activations:
            self._observe(request)
        self.not_applicable: Mapping[str, str] = self._reasons
        self.targets: Sequence[base.Target] = tuple(weight.target for weight in self._weights.values())

    def _observe(self, request: base.CompressionRequest) -> None:
        if not request.calibration:
            raise InvalidDataset(
                "Quantizing activations needs at least one batch of calibration images to learn their range from, "
                "got none. Add images or quantize the weights only."
            )
        seen: set[str] = set()

        def watch(layer: str, inputs: tuple[Tensor, ...]) -> None:
            seen.add(layer)
            for values in {id(values): values for values in inputs}.values():
                self._observers[layer].update(values)

        self._observers = {layer: OBSERVERS[self._config.observer]() for layer in self._weights}
        watchers = [(weight.module, partial(watch, layer)) for layer, weight in self._weights.items()]
        observe_inputs(request.model, watchers, request.calibration)
        for layer in [layer for layer in self._weights if layer not in seen]:
            del self._weights[layer], self._observers[layer]
            self._reasons[layer] = (
                "The input of this layer cannot be quantized: its weight is read without a call of the layer. "
                "Quantizing weights only works."
            )

    def prepare(self, target: base.Target, level: float) -> base.Prepared:
        """Round the weight of ``target`` to ``level`` bits, and its input; MeasurementFailed if they are not finite."""
        weight, bits, config = self._weights[target.layer], int(level), self._config
        parameter = weight.parameter
        if not bool(torch.isfinite(parameter).all()):
            raise MeasurementFailed(
                "The weight holds values that are not finite (NaN or infinity), so it has no scale; "
                "check the checkpoint."
            )
        values, grid = parameter.detach(), GRIDS[config.number_format](bits)
        with base.ordinary_tensors():
            scale = scale_of(
                values,
                bits=bits,
                number_format=config.number_format,
                granularity=config.granularity,
                channel_axis=weight.profile.channel_axis,
            )
            rounded = rounded_weight(values, scale, grid)
            inputs = self._rounded_inputs(weight, bits)
        return base.Prepared(
            applied=base.Applied(achieved_level=level),
            parameter=parameter,
            weight=lambda: rounded,
            inputs=inputs,
            constraint=base.UpdateConstraint(grid=replace(grid, shared=config.granularity == "tensor")),
            scale=scale if rounded.dtype is torch.float32 else None,
        )

    def _rounded_inputs(self, weight: base.LayerWeight, bits: int) -> Callable[[], AbstractContextManager[None]] | None:
        """Return a context inside which the inputs of the layer are rounded; None if they never are."""
        if not self._config.activations:
            return None
        rounding = partial(
            fake_quantize_input, bits=self._config.input_bits or bits, number_format=self._config.number_format
        )
        value_range = self._observers[weight.profile.name].value_range(rounding)
        if value_range is None:
            raise MeasurementFailed(
                "The layer's input is not finite (NaN or infinity) on the calibration images, so it has no range."
            )
        low, high = value_range
        return lambda: changed_inputs(weight.module, lambda values: rounding(values, low, high))
