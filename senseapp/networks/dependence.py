"""Dependence of each result of a pass on modules, through tensors and through numbers that the code has read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from senseapp.compat.torch_internals import storage_of, writes_into_arguments

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
