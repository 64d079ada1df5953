"""Quantization: one layer's weight, and on request its input, are rounded to few bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor

from senseapp.compressions import QuantizationConfig
from senseapp.compressions.base import (
    Applied,
    CompressionRequest,
    LayerWeight,
    Prepared,
    Target,
    UpdateConstraint,
    WeightCompressor,
    WeightGrid,
    find_weights,
    ordinary_tensors,
    swapped,
)
from senseapp.compressions.quantization.activations import (
    OBSERVERS,
    MinMaxObserver,
    Rounding,
    changed_inputs,
    observe_inputs,
)
from senseapp.compressions.quantization.grid import GRIDS, fake_quantize_input, fake_quantize_weight, scale_of
from senseapp.core.errors import InvalidDataset, MeasurementFailed


class QuantizationCompressor(WeightCompressor):
    """A :class:`~senseapp.compressions.base.Compressor` that rounds a weight, and on request the layer's input.

    Inputs get one scale and zero point per tensor; query, key and value of ``nn.MultiheadAttention`` share theirs.
    Their ranges come from the calibration images, in one pass for all layers.
    """

    def __init__(self, config: QuantizationConfig, request: CompressionRequest) -> None:
        self._config = config
        self._weights, self._reasons = find_weights(request.model, request.layers)
        self._observers: dict[str, MinMaxObserver] = {}
        if config.activations:
            self._observe(request)
        self.not_applicable: Mapping[str, str] = self._reasons
        self.targets: Sequence[Target] = tuple(weight.target for weight in self._weights.values())

    def _observe(self, request: CompressionRequest) -> None:
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

    def prepare(self, target: Target, level: float) -> Prepared:
        """Round the weight of ``target`` to ``level`` bits, and its input; MeasurementFailed if they are not finite."""
        weight, bits = self._weights[target.layer], int(level)
        with ordinary_tensors():
            rounded = self._rounded(weight, bits)
            input_range = self._input_range(target.layer, bits)

        applied = Applied(achieved_level=level)
        grid, shared = GRIDS[self._config.number_format](bits), self._config.granularity == "tensor"
        integers = self._config.number_format == "int"
        allowed = WeightGrid(nearest=grid.nearest, largest=grid.largest, shared=shared, integers=integers)
        constraint = UpdateConstraint(grid=allowed)
        on_grid = rounded.dtype is torch.float32
        scale = partial(self._scale, weight, weight.parameter.detach(), bits) if on_grid else None
        if input_range is None:
            return Prepared(
                applied=applied,
                active=lambda: swapped(weight.parameter, rounded),
                weight=lambda: rounded,
                constraint=constraint,
                scale=scale,
            )
        low, high = input_range
        round_input = self._input_rounding(bits)

        def rounded_input(values: Tensor) -> Tensor:
            return round_input(values, low, high)

        def inputs() -> AbstractContextManager[None]:
            return changed_inputs(weight.module, rounded_input)

        @contextmanager
        def active() -> Iterator[None]:
            with swapped(weight.parameter, rounded), inputs():
                yield

        return Prepared(applied=applied, active=active, inputs=inputs, constraint=constraint, scale=scale)

    def _rounded(self, weight: LayerWeight, bits: int) -> Tensor:
        parameter = weight.parameter
        if not bool(torch.isfinite(parameter).all()):
            raise MeasurementFailed(
                "The weight holds values that are not finite (NaN or infinity), so it has no scale; "
                "check the checkpoint."
            )
        return fake_quantize_weight(
            parameter.detach(),
            bits=bits,
            number_format=self._config.number_format,
            granularity=self._config.granularity,
            channel_axis=weight.profile.channel_axis,
        )

    def _scale(self, weight: LayerWeight, values: Tensor, bits: int) -> Tensor:
        with ordinary_tensors():
            return scale_of(
                values,
                bits=bits,
                number_format=self._config.number_format,
                granularity=self._config.granularity,
                channel_axis=weight.profile.channel_axis,
            )

    def _input_rounding(self, bits: int) -> Rounding:
        bits = self._config.input_bits or bits
        return partial(fake_quantize_input, bits=bits, number_format=self._config.number_format)

    def _input_range(self, layer: str, bits: int) -> tuple[float, float] | None:
        if not self._config.activations:
            return None
        value_range = self._observers[layer].value_range(self._input_rounding(bits))
        if value_range is None:
            raise MeasurementFailed(
                "The layer's input is not finite (NaN or infinity) on the calibration images, so it has no range."
            )
        return value_range
