"""Float ONNX networks whose quantized weights are stored as integers: smaller files that compute the same numbers.

Each weight on a grid becomes an initializer of 8 or 4 bits, a ``Cast`` to float and a ``Mul`` by its scales. Runtimes
fold both when they open the file, so a call takes the time of the float network. ``DequantizeLinear`` would say the
same, but onnxruntime does not fold it and then runs without prepared weights (1.5 times the time, measured).
"""

from collections.abc import Mapping

import torch
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products

_LIMIT = 8  # of INT4, the signed type below 8 bits of opset 21
_OPSET, _IR = 21, 10  # that know it
_CHANGED_IN_21 = "GroupNormalization"  # other meaning of its scale since opset 21
_SAME = 2.0**-20  # relative: a folded norm rounds the product of integer and scale again


def with_quantized_weights(network: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
    """Return a float ONNX file that computes the same, up to the order of its sums, with weights stored as integers.

    Also of how many nodes; ``integers`` are by node, of its layer, before norms were folded into the weight.
    """
    graph = OnnxGraph(network)
    narrow = all(node.op_type != _CHANGED_IN_21 for node in graph.nodes)
    stored = 0
    for product in products(graph):
        layer = integers.get(product.node)
        weight = None if layer is None else integers_of(product, layer)
        if weight is not None:
            _unpack(graph, product.weight, weight, narrow=narrow)
            stored += 1
    if not stored:
        return network, 0
    model = graph.proto()
    if any(each.data_type == TensorProto.INT4 for each in model.graph.initializer):
        next(each for each in model.opset_import if not each.domain).version = max(_OPSET, graph.opset)
        model.ir_version = max(model.ir_version, _IR)
    return bytes(model.SerializeToString()), stored


def integers_of(product: WeightedNode, layer: IntegerWeight) -> IntegerWeight | None:
    """Return the weight of a node as the integers of its ``layer``, in the node's layout; None if it is none of them.

    A folded norm multiplies output channels, so each may have another scale than the layer's, another sign, or be 0.
    The weight may be some of the layer's output channels, as where attention has one weight for three products. Float8
    is no integer.
    """
    if layer.values.is_floating_point():
        return None
    rows = product.values.movedim(product.channel_axis, 0).flatten(1)  # (O, K)
    integers = layer.values.flatten(1)
    for first in range(0, len(integers) - len(rows) + 1, len(rows)):
        part = integers[first : first + len(rows)]
        if part.shape != rows.shape:
            return None
        part = part * (rows * part).sum(1, keepdim=True).sign().to(part.dtype)
        if (scales := _scales(rows, part, shared=layer.scale.numel() == 1)) is None:
            continue
        values = part.reshape(product.values.movedim(product.channel_axis, 0).shape).movedim(0, product.channel_axis)
        shape = [-1 if axis == product.channel_axis else 1 for axis in range(values.dim())]
        return IntegerWeight(
            values=values.contiguous(),
            scale=scales.reshape(shape if len(scales) > 1 else [1] * values.dim()),
            zero_point=layer.zero_point,
        )
    return None


def _scales(rows: Tensor, integers: Tensor, *, shared: bool) -> Tensor | None:
    """Return scales (O,), or (1,) if one is enough, that make ``rows`` (O, K) of ``integers``; None without any."""
    if shared and (scales := _scales(rows.reshape(1, -1), integers.reshape(1, -1), shared=False)) is not None:
        return scales
    numbers = integers.float()
    scale = (rows.abs().amax(1) / numbers.abs().amax(1).clamp_min(1)).clamp_min(torch.finfo(torch.float32).tiny)
    return scale if bool(((numbers * scale[:, None] - rows).abs() <= _SAME * rows.abs()).all()) else None


def _unpack(graph: OnnxGraph, name: str, weight: IntegerWeight, *, narrow: bool) -> None:
    """Let the weight called ``name`` be made of integers in 8 or, if ``narrow``, 4 bits."""
    graph.discard([name])
    values, integers = weight.values.numpy(), f"{name}.integers"
    if narrow and int(values.min(initial=0)) >= -_LIMIT and int(values.max(initial=0)) < _LIMIT:
        packed = helper.make_tensor(integers, TensorProto.INT4, values.shape, values.flatten().tolist())
        graph.initializers[integers] = packed
    else:
        graph.store(integers, values)
    graph.store(f"{name}.scale", weight.scale.numpy())
    graph.insert(*unpacking(name, integers, f"{name}.scale"))


def unpacking(weight: str, integers: str, scale: str) -> tuple[NodeProto, NodeProto]:
    """Return nodes that make a ``weight`` in float of stored integers and scales, by the names of all three."""
    cast = helper.make_node("Cast", [integers], [f"{weight}.cast"], f"{weight}.cast", to=TensorProto.FLOAT)
    return cast, helper.make_node("Mul", [cast.output[0], scale], [weight], weight)
