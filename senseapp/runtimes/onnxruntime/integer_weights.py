"""Float ONNX networks whose quantized weights are stored as integers: smaller files that compute the same numbers.

Each weight on a grid becomes an initializer of 8 or 4 bits, a ``Cast`` to float and a ``Mul`` by its scales. Runtimes
fold both when they open the file, so a call takes the time of the float network. ``DequantizeLinear`` would say the
same, but onnxruntime does not fold it and then runs without prepared weights (1.5 times the time, measured).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.reconstruct.sizes import IntegerWeight, as_integers
from senseapp.runtimes.onnxruntime.rounding.products import products

_NARROW_BITS = 4
_NARROW_OPSET, _NARROW_IR = 21, 10  # that know 4-bit integers
_CHANGED_IN_21 = frozenset({"GroupNormalization"})  # other meaning of its scale since opset 21
_STORED_BITS = 8


def with_integer_weights(network: bytes, bits: Mapping[str, float]) -> tuple[bytes, int]:
    """Return ``network`` with the weights of some nodes stored as integers, and how many were.

    Args:
        network: float ONNX.
        bits: by node, of its weight, which lies on a grid of at most that many; above 8 a weight stays as it is.
    """
    model = onnx.load_from_string(network)
    narrow = not any(node.op_type in _CHANGED_IN_21 for node in model.graph.node)
    stored = {
        product.weight: found
        for product in products(model)
        if bits.get(product.node, np.inf) <= _STORED_BITS
        and (found := as_integers(product.values, bits=int(bits[product.node]), channel_axis=product.channel_axis))
        and not found.values.is_floating_point()
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


def _packed(name: str, weight: IntegerWeight, *, narrow: bool) -> tuple[list[TensorProto], list[NodeProto]]:
    """Return the initializers of a weight, and the nodes that make a float tensor called ``name`` of them."""
    values = weight.values.numpy()
    integers, scale, cast = f"{name}.integers", f"{name}.scale", f"{name}.cast"
    limit = 2 ** (_NARROW_BITS - 1)
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
