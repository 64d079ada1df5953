"""Nodes that an int8 file leaves in float stay in float when onnxruntime runs it.

onnxruntime rounds the weights of a float ``Conv``, ``ConvTranspose`` or ``Gemm`` itself, with one scale for the whole
tensor, where its input comes from 8 bits and its output goes to 8 bits. It leaves those alone whose input has a scale
for each channel, so that is what they get: the one scale, repeated.

Source: onnxruntime, ``core/optimizer/qdq_transformer/weight_bias_quantization.cc``.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_ROUNDED = ("Conv", "ConvTranspose", "Gemm")
_CHANNELS = 1  # axis of the input of all three


def compute_in_float(graph: onnx.GraphProto) -> None:
    """Change a QDQ network so that onnxruntime computes its float products in float, with the same outputs."""
    constants = {each.name: each for each in graph.initializer}
    dequantizing = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    for position, node in reversed(list(enumerate(graph.node))):
        weight = constants.get(node.input[1]) if node.op_type in _ROUNDED else None
        before = dequantizing.get(node.input[0]) if node.input else None
        if weight is None or before is None or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        names = [f"{node.name}.input.{part}" for part in ("scale", "zero_point", "float")]
        values = [
            np.resize(numpy_helper.to_array(constants[name]), _channels(node, weight)) for name in before.input[1:]
        ]
        graph.initializer.extend(map(numpy_helper.from_array, values, names))
        inputs = [before.input[0], *names[: len(values)]]
        own = helper.make_node("DequantizeLinear", inputs, names[2:], name=f"{node.name}.dequantize", axis=_CHANNELS)
        node.input[0] = own.output[0]
        graph.node.insert(position, own)
    read = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for unread in [node for name, node in dequantizing.items() if name not in read]:
        graph.node.remove(unread)


def _channels(node: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return how many channels the input of a product has."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Conv":
        return int(weight.dims[1]) * int(given.get("group", 1))
    return int(weight.dims[1 if given.get("transB", 0) else 0])
