"""Whether the limits that a person sets fit the curves of a run."""

from __future__ import annotations

from senseapp.errors import InvalidSchedule
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
        scale = curve.scale
        low, high = scale.bounds
        for bound in bounds:
            if bound is not None and not low <= bound <= high:
                span = f"{scale.text(low)} to {scale.text(high)}"
                raise InvalidSchedule(f"The limits of {name} lie from {span}, got {scale.text(bound)}.")


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
        level = curve.scale.fixed(wanted, curve.layer)
        if levels.setdefault(curve.layer, level) != level:
            raise InvalidSchedule(
                f"{name} shares its channels with {curve.layer}: one level holds for both, got {level:g} and "
                f"{levels[curve.layer]:g}."
            )
    return levels
