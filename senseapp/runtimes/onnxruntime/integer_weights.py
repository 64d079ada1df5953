"""Float ONNX networks whose quantized weights are stored as integers: smaller files that compute the same numbers.

Each weight on a grid becomes an initializer of 8 or 4 bits, a ``Cast`` to float and a ``Mul`` by its scales. Runtimes
fold both when they open the file, so a call takes the time of the float network. ``DequantizeLinear`` would say the
same, but onnxruntime does not fold it and then runs without prepared weights (1.5 times the time, measured).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products

NARROW_BITS = 4  # of INT4, the signed type below 8 bits of opset 21
_NARROW_OPSET, _NARROW_IR = 21, 10  # that know 4-bit integers
_CHANGED_IN_21 = frozenset({"GroupNormalization"})  # other meaning of its scale since opset 21
_TOLERANCE = 2.0**-22  # relative, two binary digits of float32: a folded norm rounds the product again
_NUDGES = (0, 1, -1, 2, -2)  # of a scale, in units of its last place: the largest weight determines it up to rounding


def with_integer_weights(network: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
    """Return ``network`` with the weights of some nodes stored as integers, and how many were.

    Args:
        network: float ONNX.
        integers: by node, of its layer, before norms were folded into the weight.
    """
    model = onnx.load_from_string(network)
    narrow = not any(node.op_type in _CHANGED_IN_21 for node in model.graph.node)
    stored = {
        product.weight: found
        for product in products(model)
        if product.node in integers and (found := integers_of(product, integers[product.node])) is not None
    }
    if not stored:
        return network, 0
    kept = [each for each in model.graph.initializer if each.name not in stored]
    nodes = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(kept)
    for name, weight in stored.items():
        constants, unpacking = _packed(name, weight, narrow=narrow)
        model.graph.initializer.extend(constants)
        model.graph.node.extend(unpacking)
    model.graph.node.extend(nodes)
    if any(each.data_type == TensorProto.INT4 for each in model.graph.initializer):
        _raise_opset(model)
    return bytes(model.SerializeToString()), len(stored)


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
        found = _error(rows, numbers * scale[:, None])
        best, error = torch.where(found < error, scale, best), torch.minimum(found, error)
    return best if bool((error <= _TOLERANCE).all()) else None


def _nudged(scale: Tensor, steps: int) -> Tensor:
    towards = torch.full_like(scale, torch.inf if steps > 0 else 0.0)
    for _ in range(abs(steps)):
        scale = torch.nextafter(scale, towards)
    return scale


def _error(rows: Tensor, got: Tensor) -> Tensor:
    """Return the largest relative difference in each row; (O,)."""
    difference = (got - rows).abs() / rows.abs()
    return torch.where(rows == 0, torch.where(got == 0, 0.0, torch.inf), difference).amax(1)


def _packed(name: str, weight: IntegerWeight, *, narrow: bool) -> tuple[list[TensorProto], list[NodeProto]]:
    """Return the initializers of a weight, and the nodes that make a float tensor called ``name`` of them."""
    values = weight.values.numpy()
    integers, scale, cast = f"{name}.integers", f"{name}.scale", f"{name}.cast"
    limit = 2 ** (NARROW_BITS - 1)
    if narrow and -limit <= int(values.min(initial=0)) and int(values.max(initial=0)) < limit:
        packed = helper.make_tensor(integers, TensorProto.INT4, values.shape, values.flatten().tolist())
    else:
        packed = numpy_helper.from_array(values, integers)
    nodes = [
        helper.make_node("Cast", [integers], [cast], f"{name}.cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [cast, scale], [name], f"{name}.mul"),
    ]
    return [packed, numpy_helper.from_array(weight.scale.numpy(), scale)], nodes


def _raise_opset(model: onnx.ModelProto) -> None:
    for each in model.opset_import:
        if not each.domain:
            each.version = max(each.version, _NARROW_OPSET)
    model.ir_version = max(model.ir_version, _NARROW_IR)
