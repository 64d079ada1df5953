"""Costs of a model before and after compression, and the time of its passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from senseapp.descriptions import BudgetKind, Effect
from senseapp.networks.profile import acting_zero_share
from senseapp.reconstruct.apply import AppliedModel
from senseapp.solve.curves import weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Costs of one model, each counted exactly.

    Attributes:
        params: all parameters, biases and norms included.
        weights: numbers in the weights of compressible layers, ``zeros`` of which are zero.
        compact_bytes: the size that budgets of bytes count, which is not that of a file: the compressible weights at
            their bits, stored dense or as one bit per position and the non-zero values, whichever is smaller for a
            layer; everything else as it was loaded. Scales of quantized weights are not counted.
        macs: multiply-accumulates of one image through the whole model, less those of zeros in layers that were made
            sparse; weights that were zero before, or were rounded to zero, count in full, as in budgets.
        average_bits: of the compressible weights.
    """

    params: float
    weights: float
    zeros: float
    compact_bytes: float
    macs: float
    average_bits: float

    def figure(self, kind: BudgetKind, before: ModelSize) -> float:
        """Return the figure of a budget of ``kind``: the fraction removed relative to ``before``, or the average bits.

        As in budgets, weights that were zero before count as removed.
        """
        if kind == "bits":
            return self.average_bits
        if kind == "params":
            return 1 - (self.weights - self.zeros) / before.weights
        if kind == "bytes":
            return (before.compact_bytes - self.compact_bytes) / (4 * before.weights)
        return 1 - self.macs / before.macs if before.macs else 0.0


def sizes_of(applied: AppliedModel, dense: nn.Module) -> tuple[ModelSize, ModelSize]:
    """Return the costs of the model before, as it was loaded, and after."""
    untouched = AppliedModel(model=dense, before=applied.before, after=applied.before, reached=())
    return replace(_size(untouched), compact_bytes=applied.before.num_bytes), _size(applied)


def _size(applied: AppliedModel) -> ModelSize:
    weights = zeros = skipped_macs = stored = bits = 0.0
    sparse = {member for entry in applied.reached_by(Effect.ZEROS) for member in entry.members}
    seen: set[int] = set()
    for layer in applied.after.layers:
        parameter = applied.model.get_parameter(layer.parameter)
        if id(parameter) in seen:  # a tied weight is stored once
            continue
        seen.add(id(parameter))
        count, empty = parameter.numel(), parameter.numel() - int(parameter.count_nonzero())
        weights, zeros, bits = weights + count, zeros + empty, bits + count * applied.bits(layer.name)
        stored += weight_bytes(count, zeros=empty, bits=applied.bits(layer.name)) - 4 * count
        if layer.name in sparse:
            skipped_macs += layer.macs * acting_zero_share(applied.model, layer)
    return ModelSize(
        params=applied.after.num_params,
        weights=weights,
        zeros=zeros,
        compact_bytes=applied.after.num_bytes + stored,
        macs=applied.after.macs - skipped_macs,
        average_bits=bits / weights,
    )


def pass_seconds(models: Sequence[nn.Module], image: Tensor, *, passes: int = 21) -> list[list[float]]:
    """Return, for each model, the seconds of ``passes`` passes of ``image``, (N, C, H, W).

    The models alternate, so that other work on the machine affects all alike.
    """
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for turn in range(passes + 1):
            for model, spent in zip(models, seconds, strict=True):
                started = time.perf_counter()
                model(image)
                if image.is_cuda:
                    torch.cuda.synchronize(image.device)
                if turn:  # the first pass prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds
