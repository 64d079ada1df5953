"""Activations that files write as several nodes, as one step each, recognised by their values.

One step takes a fraction of the time, and a layer's output before it has one reader, so that estimates of the quick
scan go through the activation as it is and not by its slope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from senseapp.networks.onnx.infer import evaluate
from senseapp.networks.onnx.torch_graph import Node, TorchGraph

_PARTS = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Erf", "Sigmoid", "HardSigmoid", "Clip"})
_KNOWN = (("Gelu", 20, F.gelu), ("HardSwish", 14, F.hardswish), ("Swish", 24, F.silu))
_ARGUMENTS = torch.linspace(-64, 64, 513, dtype=torch.float64)


def merge_activations(graph: TorchGraph) -> TorchGraph:
    """Merge each GELU, hard swish and swish (SiLU) of several nodes into one node.

    Nodes before a product are added, the last first, while they work on each element and read constants of one number
    else; wherever all that is left to compute is one value x, the function of x is compared with those known.
    """
    makers = graph.producers()
    places = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}

    def merged(node: Node) -> Node:
        parts, read = [node], _variables(node, graph)
        while node.op in ("Mul", "Div") and len(parts) <= 6:  # x · (1 + erf(x / √2)) · 0.5 has five
            known = _known(parts, next(iter(read)), graph) if len(read) == 1 else None
            if known is not None:
                op, version = known
                return replace(node, op=op, version=version, inputs=tuple(read), attributes={})
            last = max(read, key=lambda name: places.get(name, -1), default="")
            maker = makers.get(last)
            if maker is None or maker.op not in _PARTS:
                break
            parts.append(maker)
            read = read - {last} | _variables(maker, graph)
        return node

    return graph.mapped(merged)


def _variables(node: Node, graph: TorchGraph) -> set[str]:
    """Return what a node reads besides constants of one number."""
    return {name for name in node.inputs if name and not _is_number(name, graph)}


def _is_number(name: str, graph: TorchGraph) -> bool:
    constant = graph.constants.get(name)
    return constant is not None and constant.value.numel() == 1 and constant.value.is_floating_point()


def _known(parts: Sequence[Node], source: str, graph: TorchGraph) -> tuple[str, int] | None:
    """Return the operator that computes from ``source`` what ``parts``, the last node first, do; None for others."""
    values: Mapping[str, torch.Tensor] = {source: _ARGUMENTS}
    for node in reversed(parts):
        known = {name: graph.constants[name].value for name in node.inputs if _is_number(name, graph)}
        numbers = {name: value.double().reshape(()) for name, value in known.items()}
        operands = [{**values, **numbers}[name] if name else None for name in node.inputs]
        values = {**values, node.outputs[0]: evaluate(node, operands)[0]}
    found = values[parts[0].outputs[0]]
    if found.shape != _ARGUMENTS.shape:
        return None
    # Constants are as files have them: 1.41421 for √2 too, but none of 16 bits.
    alike = (known for known in _KNOWN if torch.allclose(found, known[2](_ARGUMENTS), rtol=0, atol=1e-5))
    return next(((op, version) for op, version, _ in alike), None)
