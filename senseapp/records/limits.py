"""What a person allows and fixes in a schedule, for all layers and for single ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from senseapp.core.errors import InvalidSpec

Bounds = tuple[float | None, float | None]
"""The least and the greatest level of a layer; None means no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the levels of layers, and levels that a person has fixed.

    Attributes:
        min_level, max_level: of every layer; fractions, or bits for quantization (untouched counts as 32 bits); None
            means no bound.
        layers: bounds of single layers by name, in place of those of every layer.
        fixed: layer name to its level; 0 leaves the layer alone. Bounds do not hold for fixed layers.
    """

    min_level: float | None = None
    max_level: float | None = None
    layers: Mapping[str, Bounds] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_order("level", (self.min_level, self.max_level))
        for name, bounds in self.layers.items():
            _require_order(f"level of {name}", bounds)

    def bounds_of(
        self, members: Iterable[str], *, low: float = -math.inf, high: float = math.inf
    ) -> tuple[float, float]:
        """Return the least and the greatest level of coupled layers; ``low`` and ``high`` stand in for no bound."""
        least, most = next(
            (self.layers[member] for member in members if member in self.layers),
            (self.min_level, self.max_level),
        )
        return (low if least is None else least), (high if most is None else most)


def _require_order(what: str, bounds: Bounds) -> None:
    low = -math.inf if bounds[0] is None else bounds[0]
    high = math.inf if bounds[1] is None else bounds[1]
    if not low <= high:
        raise InvalidSpec(f"The minimum {what} must not be above the maximum, got {low:g} and {high:g}.")
