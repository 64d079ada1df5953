"""Put modules back exactly as they were after parameters were replaced and attributes changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["restored"]

_TENSORS = ("_parameters", "_buffers")
_ABSENT = object()


@contextmanager
def restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo, on exit and also on error, what the body does to the attributes of ``modules``.

    Pruning gives a module new parameters and buffers and writes new sizes into it; the old tensors are never written
    to. So it is enough to put the old objects back: no tensor is copied. Children, hooks and training flags are left
    alone, for whoever else holds on to the module.
    """
    saved = [(module, _attributes(module), _tensors(module)) for module in dict.fromkeys(modules)]
    try:
        yield
    finally:
        for module, attributes, tensors in saved:
            _restore(vars(module), attributes)
            for kind, before in tensors.items():
                _restore(vars(module)[kind], before)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what a module holds itself: sizes such as ``in_channels``, not its tables of tensors and hooks."""
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"}


def _tensors(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {kind: dict(vars(module)[kind]) for kind in _TENSORS}


def _restore(held: dict[str, Any], before: dict[str, Any]) -> None:
    """Make ``held`` equal to ``before`` again, in its order, touching only what differs."""
    for name, value in before.items():
        if held.get(name, _ABSENT) is not value:
            held[name] = value
