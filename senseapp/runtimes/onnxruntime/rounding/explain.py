"""Damage by rounding a layer's weights, its input or its output alone, with all else in float."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import Tensor

from senseapp.compressions.quantization.grid import affine_of
from senseapp.metrics import MetricChange
from senseapp.records.layer_findings import LayerRounding, RoundingSettings
from senseapp.runtimes.onnxruntime.partly_int8 import FUSED
from senseapp.runtimes.onnxruntime.rounding.calibration import Range, ranges, rounded_products
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode, products


def layer_roundings(
    network: bytes,
    batches: Sequence[Tensor],
    settings: RoundingSettings,
    *,
    owners: Mapping[str, str],
    change_of: Callable[[bytes], MetricChange],
    progress: Callable[[str], None],
) -> Iterator[LayerRounding]:
    """Yield what rounding does to each node of ``network`` that multiplies with weights, in order.

    Ranges, by smallest error, and weights are fitted to ``batches``; ``change_of`` measures a file, on other images.
    A node is called as the layer of ``owners`` that it belongs to.
    """
    model = onnx.load_from_string(network)
    nodes = products(model)
    outputs = {each.node: _made_by(model, each) for each in nodes}
    progress("Finding the ranges of activations")
    bits, tensors = settings.activation_bits, sorted({*outputs.values(), *(each.input for each in nodes)})
    found = ranges(network, batches, tensors, ["mse"], bits=bits)["mse"]
    largest = 2 ** (settings.weight_bits - 1) - 1
    fitted = rounded_products(network, batches, nodes, found, largest=largest, progress=progress)
    for index, each in enumerate(nodes):
        progress(f"Rounding each part alone · {index} of {len(nodes)}")
        weight = fitted.get(each.node)
        values, output = found.get(each.input), found.get(outputs[each.node])
        constants = {each.weight: weight.weight} if weight is not None else {}
        if weight is not None and each.bias is not None and weight.offsets is not None:
            constants[each.bias] = weight.offsets
        yield LayerRounding(
            layer=owners.get(each.node, each.node),
            weight=change_of(_with_constants(network, constants)) if constants else None,
            given=change_of(_with_rounded(network, each.input, values, bits, only=each.node)) if values else None,
            made=change_of(_with_rounded(network, outputs[each.node], output, bits)) if output else None,
        )


def _made_by(model: onnx.ModelProto, product: WeightedNode) -> str:
    """Return the tensor that an int8 file rounds after ``product``: that of an activation computed with it."""
    output = next(node.output[0] for node in model.graph.node if node.name == product.node)
    readers = [node for node in model.graph.node if output in node.input]
    return str(readers[0].output[0]) if len(readers) == 1 and readers[0].op_type in FUSED else str(output)


def _with_constants(network: bytes, values: dict[str, Tensor]) -> bytes:
    model = onnx.load_from_string(network)
    for constant in model.graph.initializer:
        if constant.name in values:
            constant.CopyFrom(numpy_helper.from_array(values[constant.name].numpy(), constant.name))
    return bytes(model.SerializeToString())


def _with_rounded(network: bytes, tensor: str, ends: Range, bits: int, *, only: str | None = None) -> bytes:
    """Return ``network`` with one tensor rounded, for all that read it or ``only`` one node; plain float arithmetic."""
    model = onnx.load_from_string(network)
    graph = model.graph
    scale, zero_point = affine_of(*ends, bits=bits)
    constants = {"scale": scale, "low": -zero_point, "high": 2**bits - 1 - zero_point}
    named = {key: f"{tensor}.rounded.{key}" for key in (*constants, "steps", "nearest", "inside", "value")}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.float32), named[key]) for key, value in constants.items()
    )
    source = tensor
    if tensor in {each.name for each in graph.output}:
        source = f"{tensor}.exact"
        for node in graph.node:
            node.output[:] = [source if name == tensor else name for name in node.output]
        named["value"] = tensor
    else:
        for node in graph.node:
            if only is None or node.name == only:
                node.input[:] = [named["value"] if name == tensor else name for name in node.input]
    made_at = [position for position, node in enumerate(graph.node) if source in node.output]
    chain = (
        helper.make_node("Div", [source, named["scale"]], [named["steps"]]),
        helper.make_node("Round", [named["steps"]], [named["nearest"]]),
        helper.make_node("Clip", [named["nearest"], named["low"], named["high"]], [named["inside"]]),
        helper.make_node("Mul", [named["inside"], named["scale"]], [named["value"]]),
    )
    for offset, node in enumerate(chain, start=made_at[0] + 1 if made_at else 0):
        graph.node.insert(offset, node)
    return bytes(model.SerializeToString())
