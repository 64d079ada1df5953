"""Normalisation with weights that are computed, and the kinds that torch has no module for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import enter, operator


@operator("BatchNormalization")
def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    training_mode: bool = False,
) -> Tensor:
    if training_mode:  # older exports standardise weights so: with the statistics of what is given
        return F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    # Statistics that the graph computes from stored ones are parameters, and torch has no gradient for them here.
    return F.batch_norm(x, mean.detach(), variance.detach(), scale, bias, False, 0.0, epsilon)


@operator("LayerNormalization")
def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> Tensor:
    normalised = F.layer_norm(x, x.shape[axis:], None, None, epsilon) * scale
    return normalised if bias is None else normalised + bias


@operator("RMSNormalization")
def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    return F.rms_norm(x, x.shape[axis:], None, epsilon) * scale


@operator("GroupNormalization")
def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int = 1, epsilon: float = 1e-5) -> Tensor:
    channels = x.shape[1]
    return F.group_norm(x, num_groups, by_channel(scale, channels), by_channel(bias, channels), epsilon)


def by_channel(weights: Tensor, channels: int) -> Tensor:
    """Return one weight per channel: before opset 21 there is one per group."""
    return weights if len(weights) == channels else weights.repeat_interleave(channels // len(weights))


@operator("LRN")
def _local_response(x: Tensor, *, size: int = 1, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad((x * x).unsqueeze(1), [0, 0] * (x.ndim - 2) + [before, after])
    summed = squares.unfold(2, size, 1).sum(-1).squeeze(1)  # over neighbouring channels
    return x / (bias + alpha / size * summed).pow(beta)


enter(
    {
        # A group for each channel is also defined for one element a channel, where torch's instance norm is not.
        "InstanceNormalization": lambda x, scale, bias, *, epsilon=1e-5: F.group_norm(
            x, x.shape[1], scale, bias, epsilon
        ),
        "LpNormalization": lambda x, *, axis=-1, p=2: x / torch.linalg.vector_norm(x, p, axis, keepdim=True),
    }
)
