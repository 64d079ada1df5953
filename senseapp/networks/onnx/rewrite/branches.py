"""Replacement of branches (``If``) whose condition follows from constants and shapes.

Older exports write ``squeeze`` and comparisons of lengths so. The branch is chosen for the number and size of images
that the file declares; ``check.py`` compares the result with onnxruntime, which chooses anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import Folding, Values, advance, batch_of, input_shapes, start
from senseapp.networks.onnx.torch_graph import Body, Constant, Node, TorchGraph
from senseapp.records.inputs import USUAL_SIZES

_BRANCHES = ("else_branch", "then_branch")  # by the condition


def take_branches(graph: TorchGraph) -> TorchGraph:
    """Return ``graph`` with each ``If`` of a known condition replaced by its branch.

    Raises InvalidCheckpoint where a value before one is larger than any memory.
    """
    if not any(each.op == "If" for each in graph.nodes):
        return graph
    side = USUAL_SIZES[0]
    shapes = input_shapes(graph, batch_of(graph) or 1, (side, side))
    taking = _Taking(graph=graph, values=start(graph, shapes))
    nodes = taking.nodes()
    if not taking.taken:
        return graph
    count = f"{taking.taken} branches (If)" if taking.taken > 1 else "A branch (If)"
    decided = f"{count} of the file: what is taken for images of its shape is read as part of the network."
    return replace(graph, nodes=nodes, constants=taking.constants, notes=(*graph.notes, decided))


class _Fresh:
    """Gives out names that are not taken; the time does not depend on how many are alike."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._counters: dict[str, int] = {}

    def near(self, wanted: str) -> str:
        """Return ``wanted``, or it with a number, and take it."""
        name = wanted
        while name in self._taken:
            self._counters[wanted] = self._counters.get(wanted, 0) + 1
            name = f"{wanted} {self._counters[wanted]}"
        self._taken.add(name)
        return name


@dataclass(slots=True, kw_only=True)
class _Taking:
    graph: TorchGraph
    values: Values
    constants: dict[str, Constant] = field(init=False)
    names: _Fresh = field(init=False)  # of values
    labels: _Fresh = field(init=False)  # of nodes
    folding: Folding = field(default_factory=Folding)
    taken: int = 0

    def __post_init__(self) -> None:
        self.constants = dict(self.graph.constants)
        computed = {name for each in self.graph.nodes for name in each.outputs}
        self.names = _Fresh(computed.union(self.constants, (each.name for each in self.graph.inputs)))
        self.labels = _Fresh({each.name for each in self.graph.nodes})

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, those of branches in place of their ``If``."""
        pending, found = deque(self.graph.nodes), list[Node]()
        while pending:
            node = pending.popleft()
            body = self._branch(node)
            if body is not None:
                self.taken += 1
                pending.extendleft(reversed(self._written_out(node, body)))
                continue
            found.append(node)
            self._compute(node)
        return tuple(found)

    def _branch(self, node: Node) -> Body | None:
        condition = self.values.get(node.inputs[0]) if node.op == "If" and node.inputs else None
        if condition is None or condition.is_meta or condition.numel() != 1:
            return None
        body = node.attributes.get(_BRANCHES[bool(condition)])
        return body if isinstance(body, Body) and len(body.outputs) == len(node.outputs) else None

    def _compute(self, node: Node) -> None:
        """Add what follows from shapes; behind what is not read nothing does."""
        if all(name in self.values for name in node.inputs if name):
            try:
                advance([node], self.values, self.folding)
            except UnsupportedModel:
                return

    def _written_out(self, node: Node, body: Body) -> list[Node]:
        own = [*body.constants, *(name for each in body.nodes for name in each.outputs if name)]
        renamed = {name: self.names.near(name) for name in own}
        for name, constant in body.constants.items():
            new = renamed[name]
            self.constants[new] = replace(constant, initializer=new if constant.initializer else "")
            self.values[new] = constant.value
        inner = [
            replace(_renamed(each, renamed), name=self.labels.near(f"{node.name}/{each.name}")) for each in body.nodes
        ]
        results = [
            replace(
                node,
                name=self.labels.near(f"{node.name}/{output}"),
                op="Identity",
                inputs=(renamed.get(name, name),),
                outputs=(output,),
                attributes={},
            )
            for output, name in zip(node.outputs, body.outputs, strict=True)
            if output
        ]
        return [*inner, *results]


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return ``node`` with other names of values, also in its branches."""
    return replace(
        node,
        inputs=_others(node.inputs, names),
        outputs=_others(node.outputs, names),
        attributes={name: _renamed_within(value, names) for name, value in node.attributes.items()},
    )


def _renamed_within(value: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(value, Body):
        return value
    own: Collection[str] = {*value.constants, *(name for each in value.nodes for name in each.outputs)}
    outside = {name: new for name, new in names.items() if name not in own}
    nodes = tuple(_renamed(each, outside) for each in value.nodes)
    return replace(value, nodes=nodes, outputs=_others(value.outputs, outside))


def _others(names: Sequence[str], changes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(changes.get(name, name) for name in names)
