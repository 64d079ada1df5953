"""What rounding does to a network."""

from __future__ import annotations

import torch
from torch import Tensor

from senseapp.compressions.base import (
    Applied,
    CompressionRequest,
    Prepared,
    Target,
    WeightCompressor,
    find_weights,
    ordinary_tensors,
)
from tests.rounding import RoundingConfig


class RoundingCompressor(WeightCompressor):
    def __init__(self, config: RoundingConfig, request: CompressionRequest) -> None:
        self._nearest = config.mode == "nearest"
        self._weights, self.not_applicable = find_weights(request.model, request.layers)
        self.targets = tuple(weight.target for weight in self._weights.values())

    def prepare(self, target: Target, level: float) -> Prepared:
        parameter = self._weights[target.layer].parameter
        with ordinary_tensors():
            rounded = self._rounded(parameter.detach(), int(level))
        return Prepared(applied=Applied(achieved_level=level), parameter=parameter, weight=lambda: rounded)

    def _rounded(self, values: Tensor, digits: int) -> Tensor:
        mantissa, exponent = torch.frexp(values)
        scaled = mantissa * 2**digits
        return torch.ldexp(scaled.round() if self._nearest else scaled.trunc(), exponent - digits)
