"""Whether the limits that a person sets fit the curves of a run."""

from __future__ import annotations

from senseapp.errors import InvalidSchedule
from senseapp.schedule.choices import DENSE_BITS
from senseapp.schedule.curves import LayerCurve, tidy_level
from senseapp.schedule.from_result import CurveSet
from senseapp.spec.limits import Limits


def check_own_bounds(curve_set: CurveSet, limits: Limits) -> None:
    """Require that every layer with bounds of its own can be scheduled, and that its bounds are levels.

    Raises:
        InvalidSchedule: a name is not a layer that can be scheduled, or a bound is out of range.
    """
    for name, bounds in limits.layers.items():
        curve = curve_set.curve_of(name)
        if curve is None:
            raise InvalidSchedule(f"{name} has no usable measurement, so it takes no limits. Remove those of {name}.")
        low, high, unit = (2.0, DENSE_BITS, "bits") if curve.compression == "quantization" else (0.0, 0.99, "")
        for bound in bounds:
            if bound is not None and not low <= bound <= high:
                asked, span = (f"{bound:g}", f"2 to 32 {unit}") if unit else (f"{100 * bound:g} %", "0 % to 99 %")
                raise InvalidSchedule(f"The limits of {name} lie from {span}, got {asked}.")


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
