"""Dependence of each result of a pass on modules, also through numbers that the code has read, and the layer graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from senseapp.compat.torch_internals import storage_of, writes_into_arguments
from senseapp.records.profile import INPUT, FlowNode

_SHOWS_NUMBERS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_OWN_NAMESPACES = ("aten", "prims")  # whose operations carry these tags


class Dependence:
    """Follows, through the operations of one pass, the modules that each storage depends on, as sets of bits.

    It may find too many, never too few: all views of a storage depend on what was written to any of them, and once the
    model's code has seen a number (``item()``, the length of a selection), all that is computed later depends on what
    that number did. The caller must hold the numbers of all storages.
    """

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._of: dict[int, int] = {}  # by storage
        self._seen = 0  # what the model's own code has read as numbers

    def add(self, module: str, tensor: Tensor) -> None:
        """Add a parameter or buffer of ``module``."""
        self._of[storage_of(tensor)] = self._of.get(storage_of(tensor), 0) | self.bit_of(module)

    def bit_of(self, module: str) -> int:
        """Return the bit of a module."""
        return self._bits.setdefault(module, 1 << len(self._bits))

    def bits_of(self, modules: Iterable[str]) -> int:
        """Return the bits of modules; those that have not run and own nothing that was read have none."""
        found = 0
        for module in modules:
            found |= self._bits.get(module, 0)
        return found

    def follow(self, func: Any, modules: Iterable[str], tensors: Sequence[Tensor], results: Sequence[Tensor]) -> int:
        """Add one operation inside calls of ``modules``; return what it depends on."""
        found = self.of(tensors) | self.bits_of(modules)
        written = tensors if writes_into_arguments(func) else ()
        for tensor in (*results, *written):
            self._of[storage_of(tensor)] = self._of.get(storage_of(tensor), 0) | found
        if _shows_numbers(func, tensors):
            self._seen |= found
        return found

    def of(self, tensors: Iterable[Tensor]) -> int:
        """Return what code that reads these tensors now depends on."""
        found = self._seen
        for tensor in tensors:
            found |= self._of.get(storage_of(tensor), 0)
        return found

    def reads(self, tensors: Iterable[Tensor]) -> None:
        """Note that the model's code reads these tensors as numbers."""
        self._seen |= self.of(tensors)


def _shows_numbers(func: Any, tensors: Sequence[Tensor]) -> bool:
    """Return whether the result, or its shape, tells the model's code something about the values of ``tensors``."""
    if func.namespace not in _OWN_NAMESPACES:
        return True
    if func is torch.ops.aten.index.Tensor:
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return any(tag in func.tags for tag in _SHOWS_NUMBERS)


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
