"""Which layer reads what which other layers computed: the network as a graph, followed through one watched pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from senseapp.compat.torch_internals import storage_of
from senseapp.records.profile import INPUT, FlowNode


class DataFlow:
    """Follows activations through the operations of one pass; whoever uses it keeps all tensors alive.

    A layer is a node, and so is an operation on what several nodes computed, such as the sum behind a skip. What lies
    between (norms, activations, reshapes) is none: its results are those of the node before it.
    """

    def __init__(self) -> None:
        self.nodes: list[FlowNode] = []
        self._sources: dict[int, int] = {}  # by storage: the node that computed what it holds

    def add_input(self, tensor: Tensor) -> None:
        """Begin at ``tensor``, an input of the network."""
        self._compute([tensor], FlowNode(name=INPUT, kind="input"))

    def follow(
        self, operation: str, layers: Iterable[str], arguments: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Note one operation, which multiplies by the weights of ``layers``, one after the other; mostly of none."""
        found = (self._sources.get(storage_of(tensor)) for tensor in arguments)
        sources = tuple(dict.fromkeys(source for source in found if source is not None))
        for name in layers:
            self._compute(results, FlowNode(name=name, kind="layer", inputs=sources))
            sources = (len(self.nodes) - 1,)
        if len(sources) == 1:
            self._sources.update((storage_of(tensor), sources[0]) for tensor in results)
        elif sources:
            self._compute(results, FlowNode(name=operation.strip("_"), kind="join", inputs=sources))

    def _compute(self, results: Sequence[Tensor], node: FlowNode) -> None:
        self.nodes.append(node)
        self._sources.update((storage_of(tensor), len(self.nodes) - 1) for tensor in results)
