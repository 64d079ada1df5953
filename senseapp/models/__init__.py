"""Networks in: the catalogue of architectures, checkpoints, recognition, and loading.

The names are resolved on first use, so that ``senseapp.models.catalogue`` and ``senseapp.models.names`` can be
imported (by a page, say) without loading torch.
"""

from __future__ import annotations

import importlib

_HOMES = {
    "LoadedModel": "loaded",
    "Preprocessing": "loaded",
    "load_model": "load",
    "parse_model": "names",
}

__all__ = ["LoadedModel", "Preprocessing", "load_model", "parse_model"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
