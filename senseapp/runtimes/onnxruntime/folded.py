"""Norms and constants behind convolutions, folded into their weights: onnxruntime's quantizer leaves them apart.

In float onnxruntime folds them when it opens a file. In a file with int8 values it does not: the output of each
convolution is then rounded before its norm, and again behind it, and the norm is computed in float.

Source: onnxruntime, ``core/optimizer/conv_bn_fusion.cc``, ``conv_add_fusion.cc`` and ``conv_mul_fusion.cc``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from senseapp.networks.onnx.graph import OnnxGraph, attributes_of

FOLDED_WEIGHT = ".folded_weight"
"""Behind a convolution's name, that of the weight with what was folded into it."""

Array = NDArray[np.float64]
Affine = tuple[Array, Array]
"""What a node does to each channel: times a scale, plus a shift, both (C,)."""


def fold(graph: OnnxGraph) -> None:
    """Let convolutions of a plain graph do what norms and constants behind them do.

    Folded are ``BatchNormalization``, and sums and products with one constant for each channel, where nothing else
    reads what comes before them. The outputs stay the same but for rounding of float32.
    """
    for node in list(graph.nodes):
        if node.op_type == "Conv" or (node.op_type == "ConvTranspose" and attributes_of(node).get("group", 1) == 1):
            _fold_behind(graph, node, channel_axis=int(node.op_type == "ConvTranspose"))
    graph.prune()


def _fold_behind(graph: OnnxGraph, node: NodeProto, channel_axis: int) -> None:
    """Fold all that follows one convolution, as far as it can be."""
    names = [name for name in node.input[1:] if name]
    numbers = [found for name in names if (found := _numbers(graph, name)) is not None]
    if len(numbers) != len(names):
        return
    weight, before = numbers[0], node.output[0]
    channels = weight.shape[channel_axis]
    bias = numbers[1] if len(numbers) > 1 else np.zeros(channels)
    shape = [-1 if axis == channel_axis else 1 for axis in range(weight.ndim)]
    while graph.is_read_once(node.output[0]):
        after = graph.readers(node.output[0])[0]
        affine = _affine(graph, after, node.output[0], channels, weight.ndim)
        if affine is None or not all(np.isfinite(each).all() for each in affine):
            break
        weight, bias = weight * affine[0].reshape(shape), bias * affine[0] + affine[1]
        node.output[0] = after.output[0]
        graph.remove(after)
    if node.output[0] != before:
        for position, (name, values) in enumerate(((FOLDED_WEIGHT, weight), (".folded_bias", bias)), 1):
            graph.store(node.name + name, values.astype(np.float32))
            graph.read_instead(node, position, node.name + name)


def _affine(graph: OnnxGraph, node: NodeProto, name: str, channels: int, rank: int) -> Affine | None:
    """Return what ``node`` does to the channels of ``name``, a tensor of ``rank`` axes; None for anything else."""
    if node.op_type == "BatchNormalization":
        attributes = attributes_of(node)
        values = [found for each in node.input[1:] if (found := _numbers(graph, each)) is not None]
        if attributes.get("training_mode", 0) or any(node.output[1:]) or len(values) != 4:
            return None
        gamma, beta, mean, variance = values
        # of BatchNormalization where the file gives none: the ONNX specification
        scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        return scale, beta - mean * scale
    operands = list(node.input)
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or operands.count(name) != 1:
        return None
    place = operands.index(name)
    constant = _numbers(graph, operands[1 - place])
    if constant is None or (place == 1 and node.op_type in ("Sub", "Div")) or constant.ndim > rank:
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(length != 1 for axis, length in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    constant, one = np.broadcast_to(constant.reshape(-1), channels), np.ones(channels)
    with np.errstate(divide="ignore"):
        return {
            "Add": (one, constant),
            "Sub": (one, -constant),
            "Mul": (constant, 0 * one),
            "Div": (1 / constant, 0 * one),
        }[node.op_type]


def _numbers(graph: OnnxGraph, name: str) -> Array | None:
    found = graph.array(name)
    return None if found is None or found.dtype != np.float32 else np.asarray(found, np.float64)
