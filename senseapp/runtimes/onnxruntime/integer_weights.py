"""Float ONNX networks whose quantized weights are stored as integers: smaller files that compute the same numbers.

Each weight on a grid becomes an initializer of 8 or 4 bits, a ``Cast`` to float and a ``Mul`` by its scales. Runtimes
fold both when they open the file, so a call takes the time of the float network. ``DequantizeLinear`` would say the
same, but onnxruntime does not fold it and then runs without prepared weights (1.5 times the time, measured).

Matrix products of at most 4 bits become onnxruntime's operator for them, ``MatMulNBits`` (domain ``com.microsoft``): it
holds a weight (N, K) as blocks of :data:`_BLOCK` inputs of one output, each with a scale and values of 4 bits, the zero
of which is 8. A scale for a whole row is one for each of its blocks, so such weights are held exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.texts import plural
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.file_format import QuantizedWeights
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products

_BITS = 4  # of INT4, the signed type below 8 bits of opset 21, and of MatMulNBits
_LIMIT = 2 ** (_BITS - 1)
_OPSET, _IR = 21, 10  # that know 4-bit integers
_CHANGED_IN_21 = "GroupNormalization"  # other meaning of its scale since opset 21
_DOMAIN = "com.microsoft"
_BLOCK = 32  # inputs of one scale: the operator takes powers of 2 from 16; scales are those of whole outputs
_NUDGES = (0, 1, -1, 2, -2)  # of a scale, in units of its last place: the largest weight determines it up to rounding


def with_quantized_weights(
    network: bytes, nodes: Collection[str], integers: Mapping[str, IntegerWeight]
) -> QuantizedWeights:
    """Return a float ``network`` that computes the same, up to the order of its sums, with weights stored as integers.

    Args:
        network: float ONNX.
        nodes: that have rounded weights.
        integers: by node, of its layer, before norms were folded into the weight.
    """
    graph = OnnxGraph(network)
    narrow = all(node.op_type != _CHANGED_IN_21 for node in graph.nodes)
    makers = {node.name: node for node in graph.nodes}
    stored = in_operator = 0
    for product in products(graph):
        layer = integers.get(product.node)
        weight = None if layer is None else integers_of(product, layer)
        if layer is None or weight is None:
            continue
        if product.kind != "Conv" and layer.largest < _LIMIT:
            _put_in_operator(graph, makers[product.node], product, weight)
            in_operator += 1
        else:
            _unpack(graph, product.weight, weight, narrow=narrow)
            stored += 1
    graph.prune()
    model = graph.proto()
    if in_operator and all(each.domain != _DOMAIN for each in model.opset_import):
        model.opset_import.add(domain=_DOMAIN, version=1)
    if any(each.data_type == TensorProto.INT4 for each in model.graph.initializer):
        next(each for each in model.opset_import if not each.domain).version = max(_OPSET, graph.opset)
        model.ir_version = max(model.ir_version, _IR)
    missing = len(nodes) - stored - in_operator
    found = (
        (stored, "stored as integers, and computed with in float"),
        (in_operator, f"in {_BITS} bits in onnxruntime's operator for them (MatMulNBits)"),
        (missing, "rounded as the schedule says, and stored in 32 bits"),
    )
    notes = (f"Weights of {plural(count, 'layer')} are {what}." for count, what in found if count > 0)
    content = bytes(model.SerializeToString()) if stored or in_operator else network
    return QuantizedWeights(content=content, notes=tuple(notes))


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
    largest, steps = rows.abs().amax(1), numbers.abs().amax(1).clamp_min(1)
    best, error = torch.ones_like(largest), torch.full_like(largest, torch.inf)
    for nudge in _NUDGES:
        scale = _nudged((largest / steps).clamp_min(torch.finfo(torch.float32).tiny), nudge)
        difference = (numbers * scale[:, None] - rows).abs() / rows.abs()
        found = torch.where(rows == 0, torch.where(numbers == 0, 0.0, torch.inf), difference).amax(1)
        best, error = torch.where(found < error, scale, best), torch.minimum(found, error)
    # relative, two binary digits of float32: a folded norm rounds the product again
    return best if bool((error <= 2.0**-22).all()) else None


def _nudged(scale: Tensor, steps: int) -> Tensor:
    towards = torch.full_like(scale, torch.inf if steps > 0 else 0.0)
    for _ in range(abs(steps)):
        scale = torch.nextafter(scale, towards)
    return scale


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
    graph.insert(
        helper.make_node("Cast", [integers], [f"{name}.cast"], f"{name}.cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], [name], f"{name}.mul"),
    )


def _put_in_operator(graph: OnnxGraph, node: NodeProto, product: WeightedNode, weight: IntegerWeight) -> None:
    """Let onnxruntime's operator take the place of ``node``, with the same output."""
    matrix = product.matrix(weight.values)[0]
    rows, width = matrix.shape
    blocks, packed = -(-width // _BLOCK), (f"{product.weight}.q4", f"{product.weight}.scales")
    graph.store(packed[0], _packed(matrix, blocks))
    graph.store(packed[1], weight.scale.reshape(-1, 1).expand(rows, blocks).contiguous().numpy())
    result = f"{node.output[0]}.product" if product.bias is not None else node.output[0]
    settings: dict[str, Any] = {"K": width, "N": rows, "bits": _BITS, "block_size": _BLOCK}
    made = [helper.make_node("MatMulNBits", [product.input, *packed], [result], node.name, domain=_DOMAIN, **settings)]
    if product.bias is not None:
        made.append(helper.make_node("Add", [result, product.bias], list(node.output), f"{node.name}.bias"))
    graph.insert(*made, after=node)
    graph.remove(node)


def _packed(values: Tensor, blocks: int) -> NDArray[np.uint8]:
    """Return integers (N, K) as (N, blocks, bytes), the first of two in the lower half of a byte."""
    rows, width = values.shape
    unsigned = np.full((rows, blocks * _BLOCK), _LIMIT, np.uint8)
    unsigned[:, :width] = (values + _LIMIT).numpy().astype(np.uint8)
    pairs = unsigned.reshape(rows, blocks, _BLOCK // 2, 2)
    return np.bitwise_or(pairs[..., 0], np.left_shift(pairs[..., 1], _BITS), dtype=np.uint8)
