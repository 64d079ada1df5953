"""Activations that files write as several nodes, as one step each.

One step takes a fraction of the time, and a layer's output before it has one reader, so that estimates of the quick
scan go through the activation as it is and not by its slope.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from senseapp.networks.onnx.infer import Facts
from senseapp.networks.onnx.torch_graph import Node, TorchGraph

_ROUNDED = 1e-5  # relative, of constants as files have them: 1.41421 too, and none of 16 bits


def merge_activations(graph: TorchGraph, _facts: Facts) -> TorchGraph:
    """Merge each GELU, swish (SiLU) and hard swish of several nodes into one node."""
    makers = graph.producers()

    def merged(node: Node) -> Node:
        for op, version, recognised in _KNOWN:
            source = recognised(node, makers, graph)
            if source is not None:
                return replace(node, op=op, version=version, inputs=(source,), attributes={})
        return node

    return graph.mapped(merged)


def _gelu_input(node: Node, makers: Mapping[str, Node], graph: TorchGraph) -> str | None:
    """Return x where ``node`` is the last product of x · (1 + erf(x / √2)) · 0.5, in any order.

    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units", section 2.
    """
    if node.op != "Mul":
        return None
    inner = [makers[name] for name in node.inputs if name in makers and makers[name].op == "Mul"]
    for product in inner:
        factors = [*product.inputs, *(name for name in node.inputs if name not in product.outputs)]
        rest = [name for name in factors if not _is_number(name, 0.5, graph)]
        if len(rest) != 2 or len(factors) != 3:
            continue
        for source, gate in (rest, reversed(rest)):
            if _is_gate(makers.get(gate), source, makers, graph):
                return source
    return None


def _is_gate(node: Node | None, source: str, makers: Mapping[str, Node], graph: TorchGraph) -> bool:
    """Return whether a node is 1 + erf(``source`` / √2)."""
    if node is None or node.op != "Add" or not any(_is_number(name, 1.0, graph) for name in node.inputs):
        return False
    for erf in (makers[name] for name in node.inputs if name in makers and makers[name].op == "Erf"):
        scaled = makers.get(erf.inputs[0])
        if scaled is None:
            continue
        if scaled.op == "Div" and scaled.inputs[0] == source and _is_number(scaled.inputs[1], math.sqrt(2), graph):
            return True
        rest = [name for name in scaled.inputs if not _is_number(name, math.sqrt(0.5), graph)]
        if scaled.op == "Mul" and len(scaled.inputs) == 2 and rest == [source]:
            return True
    return False


def _swish_input(node: Node, makers: Mapping[str, Node], graph: TorchGraph) -> str | None:
    """Return x where ``node`` is x · sigmoid(x).

    Source: Ramachandran et al. 2017, "Searching for activation functions", section 3, with β = 1.
    """
    for source, gate in _pairs(node, "Mul"):
        maker = makers.get(gate)
        if maker is not None and maker.op == "Sigmoid" and maker.inputs[0] == source:
            return source
    return None


def _hard_swish_input(node: Node, makers: Mapping[str, Node], graph: TorchGraph) -> str | None:
    """Return x where ``node`` is the last of x · clip(x + 3, 0, 6) / 6, in any order, or x · hardsigmoid(x).

    Source: Howard et al. 2019, "Searching for MobileNetV3", section 5.2.
    """
    whole = _sixth_of(node, graph)
    if whole is not None:  # (x · clip) / 6
        product = makers.get(whole)
        for source, gate in _pairs(product, "Mul") if product is not None else ():
            if _is_clip(makers.get(gate), source, makers, graph):
                return source
    for source, gate in _pairs(node, "Mul"):
        maker = makers.get(gate)
        if maker is None:
            continue
        inner = _sixth_of(maker, graph)
        if inner is not None and _is_clip(makers.get(inner), source, makers, graph):  # x · (clip / 6)
            return source
        if maker.op == "HardSigmoid" and maker.inputs[0] == source and _is_usual_hard_sigmoid(maker):
            return source
    return None


def _pairs(node: Node, op: str) -> Iterator[tuple[str, str]]:
    """Yield the two inputs of a node of ``op`` in both orders."""
    if node.op == op and len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def _sixth_of(node: Node, graph: TorchGraph) -> str | None:
    """Return the value of which ``node`` is a sixth."""
    if node.op == "Div" and _is_number(node.inputs[1], 6.0, graph):
        return node.inputs[0]
    return next((value for value, share in _pairs(node, "Mul") if _is_number(share, 1 / 6, graph)), None)


def _is_clip(node: Node | None, source: str, makers: Mapping[str, Node], graph: TorchGraph) -> bool:
    """Return whether a node is ``source`` + 3, clipped to between 0 and 6."""
    if node is None or node.op != "Clip":
        return False
    if node.version < 11:
        limits = node.attributes.get("min") == 0 and node.attributes.get("max") == 6
    else:
        limits = len(node.inputs) == 3 and all(
            _is_number(name, limit, graph) for name, limit in zip(node.inputs[1:], (0.0, 6.0), strict=True)
        )
    shifted = makers.get(node.inputs[0])
    if not limits or shifted is None:
        return False
    return any(value == source and _is_number(three, 3.0, graph) for value, three in _pairs(shifted, "Add"))


def _is_usual_hard_sigmoid(node: Node) -> bool:
    """Return whether a hard sigmoid has the slope and shift of MobileNetV3."""
    slope, shift = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return math.isclose(slope, 1 / 6, rel_tol=_ROUNDED) and math.isclose(shift, 0.5, rel_tol=_ROUNDED)


def _is_number(name: str, number: float, graph: TorchGraph) -> bool:
    """Return whether a value is the constant ``number``, up to rounding."""
    constant = graph.constants.get(name)
    if constant is None or constant.value.numel() != 1 or not constant.value.is_floating_point():
        return False
    return math.isclose(float(constant.value), number, rel_tol=_ROUNDED)


_KNOWN = (("Gelu", 20, _gelu_input), ("HardSwish", 14, _hard_swish_input), ("Swish", 24, _swish_input))
