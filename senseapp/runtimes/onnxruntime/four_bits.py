"""Weights of linear layers in 4 bits, in onnxruntime's operator for them; activations stay in float.

``MatMulNBits`` (domain ``com.microsoft``) holds a weight (N, K) as blocks of :data:`_BLOCK` inputs of one output, each
with a scale and values of 4 bits, the zero of which is 8. A scale for a whole row is one for each of its blocks, so
weights of at most 4 bits are held exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper
from torch import Tensor

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.runtimes.onnxruntime.integer_weights import NARROW_BITS, integers_of
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products

_DOMAIN = "com.microsoft"
_BLOCK = 32  # inputs of one scale: the operator takes powers of 2 from 16; scales are those of whole outputs
_ZERO = 2 ** (NARROW_BITS - 1)  # nibbles are unsigned


def with_four_bits(network: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, list[str]]:
    """Return ``network`` with those nodes in 4 bits that can be, and which they are.

    They are matrix products of a layer whose ``integers`` are at most 7, as rounding to 4 bits or fewer leaves them.
    The network computes the same as before, up to the order of its sums.
    """
    model = onnx.load_from_string(network)
    graph, stored = model.graph, {}
    for product in products(model):
        layer = integers.get(product.node)
        if layer is None or product.kind == "Conv" or layer.largest >= _ZERO:
            continue
        if (found := integers_of(product, layer)) is not None:
            stored[product.node] = product, found
    if not stored:
        return network, []
    gone = {product.weight for product, _ in stored.values()}
    kept = [each for each in graph.initializer if each.name not in gone]
    before = list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.initializer.extend(kept)
    for node in before:
        if node.name not in stored:
            graph.node.append(node)
            continue
        product, weight = stored[node.name]
        packed: dict[str, NDArray[Any]] = {
            f"{product.weight}.q4": _packed(product.matrix(weight.values)[0]),
            f"{product.weight}.scales": _scales(weight, *product.matrix(weight.values)[0].shape),
        }
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in packed.items())
        graph.node.extend(_written(node, product, list(packed)))
    if all(each.domain != _DOMAIN for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return bytes(model.SerializeToString()), list(stored)


def _packed(values: Tensor) -> NDArray[np.uint8]:
    """Return integers (N, K) as (N, blocks, bytes), the first of two in the lower half of a byte."""
    rows, width = values.shape
    blocks = -(-width // _BLOCK)
    unsigned = np.full((rows, blocks * _BLOCK), _ZERO, np.uint8)
    unsigned[:, :width] = (values + _ZERO).numpy().astype(np.uint8)
    pairs = unsigned.reshape(rows, blocks, _BLOCK // 2, 2)
    return np.bitwise_or(pairs[..., 0], np.left_shift(pairs[..., 1], NARROW_BITS), dtype=np.uint8)


def _scales(weight: IntegerWeight, rows: int, width: int) -> NDArray[np.float32]:
    """Return the scale of each block of a matrix (N, K) of ``rows`` and ``width``, (N, blocks)."""
    return weight.scale.reshape(-1, 1).expand(rows, -(-width // _BLOCK)).contiguous().numpy()


def _written(node: NodeProto, product: WeightedNode, packed: list[str]) -> list[NodeProto]:
    """Return what takes the place of ``node``, with the same output."""
    outputs, inputs = product.matrix(product.values)[0].shape
    result = f"{node.output[0]}.product" if product.bias is not None else node.output[0]
    settings: dict[str, Any] = {"K": inputs, "N": outputs, "bits": NARROW_BITS, "block_size": _BLOCK}
    found = [helper.make_node("MatMulNBits", [product.input, *packed], [result], node.name, domain=_DOMAIN, **settings)]
    if product.bias is not None:
        found.append(helper.make_node("Add", [result, product.bias], list(node.output), f"{node.name}.bias"))
    return found
