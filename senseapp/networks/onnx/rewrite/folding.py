"""Constant folding: what depends on constants alone is computed once, within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import LAYERS, Facts, Folding, TooLarge, evaluate
from senseapp.networks.onnx.operators import entry_of
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph

_FOLDED = 1 << 24  # elements of one computed constant
_FOLDED_IN_ALL = 1 << 26  # elements of all of them, 256 MB in float32
_RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_READ_FROM_STORED = frozenset({*_RESHAPING, "Transpose", "Cast", "DequantizeLinear"})


def fold_constants(graph: TorchGraph) -> TorchGraph:
    """Compute what depends on constants alone, within bounds, and give equal computations one name.

    Two nodes that transpose one initializer yield one constant, so that a weight shared by several nodes stays one.

    Raises:
        InvalidCheckpoint: a constant would have more elements than any network needs, or take longer.
    """
    constants = dict(graph.constants)
    renamed: dict[str, str] = {}
    computed: dict[object, tuple[str, ...]] = {}
    left, budget, folding = [], _FOLDED_IN_ALL, Folding()
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        if not _is_constant(node, constants):
            left.append(node)
            continue
        key = (node.op, tuple((name, _hashable(value)) for name, value in sorted(node.attributes.items())), node.inputs)
        if key in computed or node.op == "Identity":
            renamed.update(zip(node.outputs, computed.get(key, node.inputs), strict=False))
            continue
        operands = [constants[name].value if name else None for name in node.inputs]
        folding.spend(node, operands)
        try:
            results = evaluate(node, operands, most=min(budget, _FOLDED))
        except (TooLarge, UnsupportedModel):  # too large to keep, or refused later, if it is needed at all
            left.append(node)
            continue
        source = constants.get(node.inputs[0]) if node.inputs else None
        for output, value in zip(node.outputs, results, strict=False):
            if output and isinstance(value, Tensor):
                constants[output] = _derived(node, source, value)
                budget -= value.numel()
        computed[key] = node.outputs
    constants.update({alias: constants[name] for alias, name in renamed.items() if alias in graph.outputs})
    return replace(graph, nodes=tuple(left), constants=constants).needed_for(graph.outputs)


def _is_constant(node: Node, constants: Mapping[str, Constant]) -> bool:
    known = all(name in constants for name in node.inputs if name)
    is_layer = node.op in LAYERS and any(constants[name].weight for name in node.inputs[1:2] if name in constants)
    return known and not is_layer and entry_of(node.op, node.version) is not None


def _derived(node: Node, source: Constant | None, value: Tensor) -> Constant:
    """Return the constant ``value`` that ``node`` computes, with what is still known of the tensor of the file."""
    if source is None or node.op not in _READ_FROM_STORED:
        return Constant(value=value)
    order = source.order
    if node.op == "Transpose":
        permutation = node.attributes.get("perm", range(value.ndim)[::-1])
        kept = len(order) == value.ndim and not source.reshaped
        order = tuple(order[axis] for axis in permutation) if kept else ()
    else:
        kept = node.op in _RESHAPING or (node.op == "Cast" and value.dtype == source.value.dtype)
    return replace(
        source,
        value=value,
        initializer=source.initializer if kept else "",
        order=order if kept else (),
        reshaped=source.reshaped or node.op in _RESHAPING,
    )


def _hashable(value: Any) -> object:
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, tuple(value.flatten().tolist()) if value.numel() < 64 else id(value))
    return tuple(value) if isinstance(value, list) else value


def fix_known_values(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Turn values that are known and the same at every batch into constants; drop what only led to them."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        found = {name: _same([values[name] for _, values in facts if name in values]) for name in node.outputs if name}
        if all(each is not None for each in found.values()):
            constants.update({name: Constant(value=each) for name, each in found.items() if each is not None})
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _same(values: Sequence[Tensor]) -> Tensor | None:
    first = values[0] if values else None
    if first is None or any(each.is_meta for each in values):
        return None
    return first if all(torch.equal(first, each) for each in values[1:]) else None
