"""Normalisation with weights that are computed, and the kinds that torch has no module for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.networks.onnx.operators.registry import Attributes, Function, operator


@operator("BatchNormalization")
def _make_batch_norm(at: Attributes) -> Function:
    # Older exports standardise weights so: with the statistics of what is given.
    return partial(_batch_norm, eps=at.number("epsilon", 1e-5), own_statistics=bool(at.whole("training_mode", 0)))


def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, eps: float, own_statistics: bool
) -> Tensor:
    if own_statistics:
        return F.batch_norm(x, None, None, scale, bias, True, 0.0, eps)
    # Statistics that the graph computes from stored ones are parameters, and torch has no gradient for them here.
    return F.batch_norm(x, mean.detach(), variance.detach(), scale, bias, False, 0.0, eps)


@operator("InstanceNormalization")
def _make_instance_norm(at: Attributes) -> Function:
    return partial(_instance_norm, eps=at.number("epsilon", 1e-5))


def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    return F.group_norm(x, x.shape[1], scale, bias, eps)  # also defined for one element a channel


@operator("ImageNormalization")
def _make_image_norm(at: Attributes) -> Function:
    """Not of ONNX: what older exporters write as two reshapes around an instance norm of one channel."""
    return partial(_image_norm, eps=at.number("epsilon", 1e-5))


def _image_norm(x: Tensor, *, eps: float) -> Tensor:
    return F.group_norm(x, 1, None, None, eps)


@operator("LayerNormalization")
def _make_layer_norm(at: Attributes) -> Function:
    return partial(_layer_norm, axis=at.whole("axis", -1), eps=at.number("epsilon", 1e-5))


def _layer_norm(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int, eps: float) -> Tensor:
    normalised = F.layer_norm(x, x.shape[axis:], None, None, eps) * scale
    return normalised if bias is None else normalised + bias


@operator("RMSNormalization")
def _make_rms_norm(at: Attributes) -> Function:
    return partial(_rms_norm, axis=at.whole("axis", -1), eps=at.number("epsilon", 1e-5))


def _rms_norm(x: Tensor, scale: Tensor, *, axis: int, eps: float) -> Tensor:
    axes = tuple(range(axis % x.ndim, x.ndim))
    return x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + eps) * scale


@operator("GroupNormalization")
def _make_group_norm(at: Attributes) -> Function:
    return partial(_group_norm, groups=at.whole("num_groups", 1), eps=at.number("epsilon", 1e-5))


def _group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, groups: int, eps: float) -> Tensor:
    return F.group_norm(x, groups, by_channel(scale, x.shape[1]), by_channel(bias, x.shape[1]), eps)


def by_channel(weights: Tensor, channels: int) -> Tensor:
    """Return one weight per channel: before opset 21 there is one per group."""
    return weights if len(weights) == channels else weights.repeat_interleave(channels // len(weights))


@operator("LpNormalization")
def _make_lp_norm(at: Attributes) -> Function:
    return partial(_lp_norm, axis=at.whole("axis", -1), power=at.whole("p", 2))


def _lp_norm(x: Tensor, *, axis: int, power: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, power, axis, keepdim=True)
    return x / norm


@operator("MeanVarianceNormalization")
def _make_mean_variance(at: Attributes) -> Function:
    return partial(_mean_variance, axes=at.ints("axes") or [0, 2, 3])


def _mean_variance(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    centred = x - x.mean(tuple(axes), keepdim=True)
    return centred / ((centred * centred).mean(tuple(axes), keepdim=True).sqrt() + 1e-9)


@operator("LRN")
def _make_lrn(at: Attributes) -> Function:
    size, alpha, beta = at.whole("size", 1), at.number("alpha", 1e-4), at.number("beta", 0.75)
    return partial(_local_response, size=size, alpha=alpha, beta=beta, bias=at.number("bias", 1.0))


def _local_response(x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad((x * x).unsqueeze(1), [0, 0] * (x.ndim - 2) + [before, after])
    summed = squares.unfold(2, size, 1).sum(-1).squeeze(1)  # over neighbouring channels
    return x / (bias + alpha / size * summed).pow(beta)
