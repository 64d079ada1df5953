"""What a person allows and fixes, per run and per layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from senseapp.errors import InvalidSchedule, InvalidSpec
from senseapp.schedule.choices import DENSE_BITS
from senseapp.schedule.curves import LayerCurve, tidy_level
from senseapp.schedule.from_result import CurveSet

__all__ = ["Limits", "fixed_levels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on the level of every layer, and levels that a person has fixed.

    Attributes:
        min_level, max_level: fractions, or bits for quantization (untouched counts as 32 bits); None means no bound.
        fixed: layer name to its level; 0 leaves the layer alone. Bounds do not hold for fixed layers.
    """

    min_level: float | None = None
    max_level: float | None = None
    fixed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low = -math.inf if self.min_level is None else self.min_level
        high = math.inf if self.max_level is None else self.max_level
        if not low <= high:
            raise InvalidSpec(f"The minimum level must not be above the maximum, got {low:g} and {high:g}.")

    def allows(self, level: float) -> bool:
        """Tell whether ``level`` lies between the bounds."""
        above = self.min_level is None or level >= self.min_level
        return above and (self.max_level is None or level <= self.max_level)


def fixed_levels(curve_set: CurveSet, limits: Limits) -> dict[str, float]:
    """Return the fixed level of each fixed curve, by the name of its first member.

    Raises:
        InvalidSchedule: a name is not a layer that can be scheduled, two members of a group are fixed to different
            levels, or a level is out of range.
    """
    levels: dict[str, float] = {}
    for name, wanted in limits.fixed.items():
        curve = curve_set.curve_of(name)
        if curve is None:
            raise InvalidSchedule(
                f"{name} has no usable measurement, so its level cannot be fixed. Remove it from the fixed layers."
            )
        level = _checked(wanted, curve)
        if levels.setdefault(curve.layer, level) != level:
            raise InvalidSchedule(
                f"{name} shares its channels with {curve.layer}: one level holds for both, got {level:g} and "
                f"{levels[curve.layer]:g}."
            )
    return levels


def _checked(level: float, curve: LayerCurve) -> float:
    if curve.compression == "quantization":
        if level in (0, DENSE_BITS):
            return DENSE_BITS
        if level not in range(2, 9):
            raise InvalidSchedule(f"{curve.layer} can be fixed to 2 to 8 whole bits, or 0 for none; got {level:g}.")
        return float(level)
    if not 0 <= level < 1:
        raise InvalidSchedule(f"{curve.layer} can be fixed from 0 % to below 100 %, got {100 * level:g} %.")
    return tidy_level(level)
