"""Norms and constants behind convolutions, folded into their weights: onnxruntime's quantizer leaves them apart.

In float onnxruntime folds them when it opens a file. In a file with int8 values it does not: the output of each
convolution is then rounded before its norm, and again behind it, and the norm is computed in float.

Source: onnxruntime, ``core/optimizer/conv_bn_fusion.cc``, ``conv_add_fusion.cc`` and ``conv_mul_fusion.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from senseapp.networks.onnx.graph import OnnxGraph, attributes_of

FOLDED_WEIGHT = ".folded_weight"
"""Behind a convolution's name, that of the weight with what was folded into it."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Affine:
    """What a node does to each channel: times ``scale``, plus ``shift``, both (C,)."""

    scale: Array
    shift: Array


def with_folded(content: bytes) -> bytes:
    """Return a plain copy of a network whose convolutions do what norms and constants behind them did.

    Folded are ``BatchNormalization``, and sums and products with one constant for each channel, where nothing else
    reads what comes before them. The outputs stay the same but for rounding of float32.
    """
    graph = OnnxGraph(content)
    folded = [_fold_behind(graph, node) for node in list(graph.nodes) if node.op_type in _CONVOLUTIONS]
    if not any(folded):
        return content
    graph.prune()
    return graph.content()


def _fold_behind(graph: OnnxGraph, node: NodeProto) -> bool:
    """Fold all that follows one convolution, as far as it can be; return whether anything was."""
    weight, bias = _numbers(graph, node.input[1]), _numbers(graph, node.input[2]) if len(node.input) > 2 else None
    if weight is None or (bias is None and len(node.input) > 2 and node.input[2]):
        return False
    transposed = node.op_type == "ConvTranspose"
    if transposed and attributes_of(node).get("group", 1) != 1:
        return False
    channels, before = weight.shape[int(transposed)], node.output[0]
    bias = np.zeros(channels) if bias is None else bias
    while (found := _next(graph, node, channels, weight.ndim - 1)) is not None:
        after, affine = found
        by_channel = affine.scale.reshape((-1, *[1] * (weight.ndim - 1 - transposed)))
        weight, bias = weight * by_channel, bias * affine.scale + affine.shift
        node.output[0] = after.output[0]
        graph.remove(after)
    if node.output[0] == before:
        return False
    for position, (name, values) in enumerate(((FOLDED_WEIGHT, weight), (".folded_bias", bias)), 1):
        graph.store(node.name + name, values.astype(np.float32))
        graph.read_instead(node, position, node.name + name)
    return True


def _next(graph: OnnxGraph, node: NodeProto, channels: int, rank: int) -> tuple[NodeProto, _Affine] | None:
    """Return the only reader of ``node`` and what it does to each channel; None where it does something else.

    ``rank`` counts the axes of an image's output, (C, H, W).
    """
    output = node.output[0]
    if not graph.is_read_once(output):
        return None
    reader = graph.readers(output)[0]
    if reader.op_type == "BatchNormalization":
        affine = _norm(graph, reader)
    else:
        affine = _constant(graph, reader, output, channels, rank)
    if affine is None or not all(np.isfinite(each).all() for each in (affine.scale, affine.shift)):
        return None
    return reader, affine


def _norm(graph: OnnxGraph, node: NodeProto) -> _Affine | None:
    values = [_numbers(graph, name) for name in node.input[1:]]
    attributes = attributes_of(node)
    if attributes.get("training_mode", 0) or any(node.output[1:]):
        return None
    found = [each for each in values if each is not None]
    if len(found) != 4:
        return None
    gamma, beta, mean, variance = found
    # of BatchNormalization where the file gives none: the ONNX specification
    scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return _Affine(scale, beta - mean * scale)


def _constant(graph: OnnxGraph, node: NodeProto, name: str, channels: int, rank: int) -> _Affine | None:
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or list(node.input).count(name) != 1:
        return None
    place = list(node.input).index(name)
    values = _numbers(graph, node.input[1 - place])
    if values is None or (place == 1 and node.op_type in ("Sub", "Div")) or values.ndim > rank + 1:
        return None
    shape = (1,) * (rank + 1 - values.ndim) + values.shape
    if any(length != 1 for axis, length in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    constant, one = np.broadcast_to(values.reshape(-1), channels), np.ones(channels)
    with np.errstate(divide="ignore"):
        if node.op_type in ("Add", "Sub"):
            return _Affine(one, constant if node.op_type == "Add" else -constant)
        return _Affine(constant if node.op_type == "Mul" else 1 / constant, 0 * one)


def _numbers(graph: OnnxGraph, name: str) -> Array | None:
    found = graph.array(name)
    return None if found is None or found.dtype != np.float32 else np.asarray(found, np.float64)
