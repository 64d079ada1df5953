"""The layer graph of a network, from the operations of one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from senseapp.compat.torch_internals import storage_of
from senseapp.records.profile import INPUT, FlowNode


class DataFlow:
    """Follows activations through the operations of one pass; the caller must hold the numbers of all storages.

    Nodes are layers, and operations on the results of several nodes, such as the sum after a skip connection.
    Operations between them (norms, activations, reshapes) are not nodes: their results belong to the node before.
    """

    def __init__(self) -> None:
        self.nodes: list[FlowNode] = []
        self._sources: dict[int, int] = {}  # by storage: the node that computed its content

    def add_input(self, tensor: Tensor) -> None:
        """Add ``tensor``, an input of the network, as a node."""
        self._compute([tensor], FlowNode(name=INPUT, kind="input"))

    def follow(
        self, operation: str, layers: Iterable[str], arguments: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Add one operation, which multiplies by the weights of ``layers`` in turn; most operations have none."""
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
