"""Norms and constants behind convolutions, folded into their weights: onnxruntime's quantizer leaves them apart.

In float onnxruntime folds them when it opens a file. In a file with int8 values it does not: the output of each
convolution is then rounded before its norm, and again behind it, and the norm is computed in float.

Source: onnxruntime, ``core/optimizer/conv_bn_fusion.cc``, ``conv_add_fusion.cc`` and ``conv_mul_fusion.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

FOLDED_WEIGHT = ".folded_weight"
"""Behind a convolution's name, that of the weight with what was folded into it."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_EPSILON = 1e-5  # of BatchNormalization where the file gives none: the ONNX specification

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Affine:
    """What a node does to each channel: times ``scale``, plus ``shift``, both (C,)."""

    scale: Array
    shift: Array


def with_folded(content: bytes) -> tuple[bytes, int]:
    """Return a plain copy of a network whose convolutions do what norms and constants behind them did, and how many.

    Folded are ``BatchNormalization``, and sums and products with one constant for each channel, where nothing else
    reads what comes before them. The outputs stay the same but for rounding of float32.
    """
    model = onnx.load_from_string(content)
    folding = _Folding(model.graph)
    for node in model.graph.node:
        if node.op_type in _CONVOLUTIONS:
            folding.fold_behind(node)
    if not folding.gone:
        return content, 0
    kept = [node for node in model.graph.node if node.name not in folding.gone]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    read = {name for node in kept for name in node.input}
    tensors = [each for each in model.graph.initializer if each.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)
    return bytes(model.SerializeToString()), len(folding.gone)


@dataclass(slots=True)
class _Folding:
    """One pass over a graph; ``gone`` are the names of nodes that are folded."""

    graph: GraphProto
    gone: set[str] = field(default_factory=set)
    _constants: dict[str, onnx.TensorProto] = field(init=False)
    _readers: dict[str, list[NodeProto]] = field(init=False)
    _outputs: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._constants = {each.name: each for each in self.graph.initializer}
        self._outputs = {each.name for each in self.graph.output}
        self._readers = {}
        for node in self.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def fold_behind(self, node: NodeProto) -> None:
        """Fold all that follows one convolution, as far as it can be."""
        weight, bias = self._numbers(node.input[1]), self._numbers(node.input[2]) if len(node.input) > 2 else None
        if weight is None or (bias is None and len(node.input) > 2 and node.input[2]):
            return
        transposed = node.op_type == "ConvTranspose"
        if transposed and _attributes(node).get("group", 1) != 1:
            return  # the quantizer fails at scales by channel beside a bias there
        channels = weight.shape[int(transposed)]
        bias = np.zeros(channels) if bias is None else bias
        folded = False
        while (found := self._next(node, channels, weight.ndim - 1)) is not None:
            after, affine = found
            by_channel = affine.scale.reshape((-1, *[1] * (weight.ndim - 1 - transposed)))
            weight, bias = weight * by_channel, bias * affine.scale + affine.shift
            node.output[0] = after.output[0]
            self.gone.add(after.name)
            folded = True
        if folded:
            inputs = node.input[0], node.name + FOLDED_WEIGHT, f"{node.name}.folded_bias"
            for name, values in zip(inputs[1:], (weight, bias), strict=True):
                self.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
            del node.input[:]
            node.input.extend(inputs)

    def _next(self, node: NodeProto, channels: int, rank: int) -> tuple[NodeProto, _Affine] | None:
        """Return the only reader of ``node`` and what it does to each channel; None where it does something else.

        ``rank`` counts the axes of an image's output, (C, H, W).
        """
        output = node.output[0]
        readers = self._readers.get(output, [])
        if len(readers) != 1 or output in self._outputs:
            return None
        reader = readers[0]
        if reader.op_type == "BatchNormalization":
            affine = self._norm(reader)
        else:
            affine = self._constant(reader, output, channels, rank)
        if affine is None or not all(np.isfinite(each).all() for each in (affine.scale, affine.shift)):
            return None
        return reader, affine

    def _norm(self, node: NodeProto) -> _Affine | None:
        values = [self._numbers(name) for name in node.input[1:]]
        attributes = _attributes(node)
        if attributes.get("training_mode", 0) or any(node.output[1:]):
            return None
        found = [each for each in values if each is not None]
        if len(found) != 4:
            return None
        gamma, beta, mean, variance = found
        scale = gamma / np.sqrt(variance + attributes.get("epsilon", _EPSILON))
        return _Affine(scale, beta - mean * scale)

    def _constant(self, node: NodeProto, name: str, channels: int, rank: int) -> _Affine | None:
        if node.op_type not in ("Add", "Sub", "Mul", "Div") or list(node.input).count(name) != 1:
            return None
        place = list(node.input).index(name)
        values = self._numbers(node.input[1 - place])
        if values is None or (place == 1 and node.op_type in ("Sub", "Div")) or values.ndim > rank + 1:
            return None
        shape = (1,) * (rank + 1 - values.ndim) + values.shape
        if any(length != 1 for axis, length in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
            return None
        constant, one = np.broadcast_to(values.reshape(-1), channels), np.ones(channels)
        with np.errstate(divide="ignore"):
            return {
                "Add": lambda: _Affine(one, constant),
                "Sub": lambda: _Affine(one, -constant),
                "Mul": lambda: _Affine(constant, 0 * one),
                "Div": lambda: _Affine(1 / constant, 0 * one),
            }[node.op_type]()

    def _numbers(self, name: str) -> Array | None:
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT:
            return None
        return np.asarray(numpy_helper.to_array(tensor), np.float64)


def _attributes(node: NodeProto) -> Mapping[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
