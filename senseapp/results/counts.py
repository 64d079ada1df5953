"""How many layers, or coupled groups of layers, something is about, in words that tell the two apart."""

from __future__ import annotations

from collections.abc import Collection


def plural(number: int, noun: str) -> str:
    """Return ``1 layer``, ``21 layers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def counted(targets: Collection[Collection[str]]) -> str:
    """Return ``21 layers``; where some are pruned together, ``14 groups (22 layers)``.

    Args:
        targets: the members of each layer or group.
    """
    layers = sum(max(1, len(members)) for members in targets)
    if layers == len(targets):
        return plural(layers, "layer")
    return f"{plural(len(targets), 'group')} ({plural(layers, 'layer')})"
