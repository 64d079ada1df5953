"""How many layers, or coupled groups of layers, something is about, in words that tell the two apart."""

from __future__ import annotations

from collections.abc import Collection


def counted(targets: Collection[Collection[str]]) -> str:
    """Return ``21 layers``; where some are pruned together, ``14 groups (22 layers)``.

    Args:
        targets: the members of each layer or group.
    """
    layers = sum(max(1, len(members)) for members in targets)
    in_layers = f"{layers:,} layer{'s' if layers != 1 else ''}"
    if layers == len(targets):
        return in_layers
    return f"{len(targets):,} group{'s' if len(targets) != 1 else ''} ({in_layers})"
