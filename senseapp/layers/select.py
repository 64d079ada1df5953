"""Choose layers by name pattern and by type."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from senseapp.errors import NoLayersSelected
from senseapp.results import LayerProfile, ModelProfile


def select_layers(
    profile: ModelProfile, patterns: Sequence[str] = (), types: Sequence[str] = ()
) -> tuple[LayerProfile, ...]:
    """Return the layers whose name matches any of ``patterns`` and whose type is any of ``types``.

    Patterns are shell patterns (``layer1.*``, ``*.conv1``); no pattern, or no type, means no restriction.

    Raises:
        NoLayersSelected: nothing is left, with what there would have been.
    """
    if not profile.layers:
        raise NoLayersSelected("This model has no compressible layers: it holds no convolution and no linear layer.")
    named = [layer for layer in profile.layers if not patterns or _matches(layer.name, patterns)]
    if not named:
        examples = ", ".join(layer.name for layer in profile.layers[:3])
        raise NoLayersSelected(
            f"No layer matches {' or '.join(patterns)}. Layers here are called {examples}, …; "
            "use * for any text, for example *conv*."
        )
    typed = tuple(layer for layer in named if not types or layer.layer_type in types)
    if not typed:
        present = ", ".join(sorted({layer.layer_type for layer in named}))
        raise NoLayersSelected(f"No selected layer is a {' or '.join(types)}. The types here are {present}.")
    return typed


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
