"""Bound on what loops of a file compute, before anything is run: a few hundred bytes may ask for 10^15 passes.

Only loops that cannot end early count, with the number of passes that the file holds; how long others run, a limit on
time decides.
"""

from __future__ import annotations

from collections import ChainMap
from contextlib import suppress

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.graph import label, tensor_in

_MOST_NODES = 10**7  # run in loops for one call: some ten seconds
_ENDLESS = 1 << 63  # passes: no number of an ONNX file is as large


def check_loops(model: ModelProto) -> None:
    """Refuse a model whose loops run too many nodes for one call.

    Raises:
        InvalidCheckpoint: the message names the outermost such loop.
    """
    for graph in (model.graph, *model.functions):
        known = _scalars(graph, ChainMap())
        for node in graph.node:
            count = _nodes_of(node, known)
            if count > _MOST_NODES:
                runs = "never ends" if count >= _ENDLESS else f"runs {count:.1e} nodes for one call"
                raise InvalidCheckpoint(f"The {label(node)} {runs}; up to {_MOST_NODES:,} are run. Export it anew.")


def _nodes_of(node: NodeProto, known: ChainMap[str, float]) -> int:
    """Return how many nodes one run of ``node`` takes at least, with its bodies; ``known`` are scalars around it."""
    bodies = [each.g for each in node.attribute if each.type == AttributeProto.GRAPH]
    inside = [sum(_nodes_of(each, _scalars(body, known)) for each in body.node) for body in bodies]
    if node.op_type != "Loop" or not bodies:
        return 1 + max(inside, default=0)
    trips, condition = (*node.input, "", "")[:2]
    if not _goes_on(bodies[0], _scalars(bodies[0], known)) or (condition and not known.get(condition)):
        return 1 + inside[0]  # may end at any pass
    passes = _ENDLESS if not trips else int(max(0, known.get(trips, 1)))
    return 1 + passes * max(1, inside[0])


def _goes_on(body: GraphProto, known: ChainMap[str, float]) -> bool:
    """Return whether the condition that a body computes is always true, or the one that it is given."""
    sources = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    name = body.output[0].name if body.output else ""
    for _ in sources:
        name = sources.get(name, name)
    return bool(known.get(name)) or name in [each.name for each in body.input[1:2]]


def _scalars(graph: GraphProto | FunctionProto, around: ChainMap[str, float]) -> ChainMap[str, float]:
    """Return the numbers that a graph holds as constants, beside those ``around`` it."""
    held = graph.initializer if isinstance(graph, GraphProto) else ()
    constants: dict[str, TensorProto | None] = {each.name: each for each in held}
    constants |= {node.output[0]: tensor_in(node) for node in graph.node if node.op_type == "Constant" and node.output}
    found: dict[str, float] = {}
    for name, tensor in constants.items():
        if tensor is not None and len(tensor.dims) < 2 and all(length == 1 for length in tensor.dims):
            with suppress(ValueError, TypeError):  # texts, and damaged numbers, which the runtime refuses
                found[name] = float(numpy_helper.to_array(tensor).reshape(-1)[0])
    return around.new_child(found)
