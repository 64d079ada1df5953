"""Put modules back exactly as they were after parameters were replaced and attributes changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_ABSENT = object()


@contextmanager
def restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo, on exit and also on error, what the body does to the attributes of ``modules``.

    Pruning gives a module new parameters and buffers and writes new sizes into it; the old tensors are never written
    to. So it is enough to put the old objects back: no tensor is copied. Dictionaries get their old entries back, too:
    some modules keep what they computed from their weights in one. Children, hooks and training flags are left alone,
    for whoever else holds on to the module.
    """
    saved = [(table, dict(table)) for module in dict.fromkeys(modules) for table in _tables(module)]
    try:
        yield
    finally:
        for table, before in saved:
            _restore(table, before)


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dictionaries that hold a module's own state: attributes, parameters, buffers, and its own ones."""
    attributes = vars(module)
    own = [value for name, value in attributes.items() if isinstance(value, dict) and not name.startswith("_")]
    return [attributes, attributes["_parameters"], attributes["_buffers"], *own]


def _restore(table: dict[str, Any], before: dict[str, Any]) -> None:
    """Make ``table`` equal to ``before`` again, touching only what differs."""
    for name in table.keys() - before.keys():
        del table[name]
    for name, value in before.items():
        if name != "training" and table.get(name, _ABSENT) is not value:
            table[name] = value
