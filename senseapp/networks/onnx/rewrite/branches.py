"""Replacement of branches (``If``) whose condition follows from constants and shapes.

Older exports write ``squeeze`` and comparisons of lengths so. The branch is chosen for the number and size of images
that the file declares; ``check.py`` compares the result with onnxruntime, which chooses anew.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import Folding, Values, advance, batch_of, input_shapes, start
from senseapp.networks.onnx.torch_graph import Body, Node, TorchGraph
from senseapp.records.inputs import USUAL_SIZES

_BRANCHES = ("else_branch", "then_branch")  # by the condition


def take_branches(graph: TorchGraph) -> TorchGraph:
    """Return ``graph`` with each ``If`` of a known condition replaced by its branch.

    Raises InvalidCheckpoint where a value before one is larger than any memory.
    """
    if not any(each.op == "If" for each in graph.nodes):
        return graph
    values = start(graph, input_shapes(graph, batch_of(graph) or 1, USUAL_SIZES[:1] * 2))
    constants, folding = dict(graph.constants), Folding()
    pending, nodes, taken = deque(graph.nodes), list[Node](), 0
    while pending:
        node = pending.popleft()
        body = _branch(node, values)
        if body is not None:
            taken += 1
            constants.update(body.constants)
            values |= {name: each.value for name, each in body.constants.items()}
            pending.extendleft(reversed([*body.nodes, *_results(node, body)]))
            continue
        nodes.append(node)
        if all(name in values for name in node.inputs if name):  # behind what is not read nothing is known
            with suppress(UnsupportedModel):
                advance([node], values, folding)
    if not taken:
        return graph
    count = f"{taken} branches (If)" if taken > 1 else "A branch (If)"
    decided = f"{count} of the file: what is taken for images of its shape is read as part of the network."
    return replace(graph, nodes=tuple(nodes), constants=constants, notes=(*graph.notes, decided))


def _branch(node: Node, values: Values) -> Body | None:
    """Return the branch that ``node`` runs; None where it is another operator, or its condition is not known."""
    condition = values.get(node.inputs[0]) if node.op == "If" and node.inputs else None
    if condition is None or condition.is_meta or condition.numel() != 1:
        return None
    body = node.attributes.get(_BRANCHES[bool(condition)])
    return body if isinstance(body, Body) and len(body.outputs) == len(node.outputs) else None


def _results(node: Node, body: Body) -> list[Node]:
    """Return nodes that give results of a branch the names that the rest of the graph reads."""
    named = [(output, name) for output, name in zip(node.outputs, body.outputs, strict=True) if output]
    return [
        Node(
            name=f"{node.name}/{output}",
            op="Identity",
            version=node.version,
            inputs=(name,),
            outputs=(output,),
            attributes={},
            scope=node.scope,
        )
        for output, name in named
    ]
