"""Shift preferred levels by one common offset until they just meet the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scipy.optimize import brentq

from senseapp.errors import InvalidSpec
from senseapp.schedule.problem import Problem, infeasible

DEFAULT_MAXIMUM = 0.9  # fasterai's own, unless a stronger level was measured
_OFFSET_TOLERANCE = 1e-13
_NEAR = 1e-12  # of the total: rounding must not decide whether a bound is feasible


def require_fractions(problem: Problem, *, method: str) -> None:
    """Raise InvalidSpec unless layers can take any fraction."""
    compression = problem.curve_set.description
    if not compression.scale.any_between:
        raise InvalidSpec(
            f"The {method} method sets fractions, not {compression.scale.unit}. For {compression.name} choose the "
            "optimal method."
        )
    if not all(curve.continuous for curve in problem.curve_set.curves):
        raise InvalidSpec(f"The {method} method needs levels in between, which 2:4 sparsity does not have.")


def level_bounds(problem: Problem) -> tuple[float, float]:
    """Return the lowest and highest fraction of the layers that are not fixed."""
    low = problem.limits.min_level or 0.0
    high = problem.limits.max_level
    if high is None:
        high = max(DEFAULT_MAXIMUM, *(curve.strongest for curve in problem.curve_set.curves))
    check_bounds(low, high)
    return low, high


def check_bounds(low: float, high: float) -> None:
    """Raise InvalidSpec unless 0 <= low <= high < 1."""
    if not 0 <= low <= high < 1:
        raise InvalidSpec(
            f"The limits must satisfy 0 % <= minimum <= maximum < 100 %, got {100 * low:g} % and {100 * high:g} %."
        )


def shift_to_budget(problem: Problem, preferred: Mapping[str, float]) -> dict[str, float]:
    """Return the preferred levels, moved together and clipped to the limits, with the least offset that saves enough.

    Raises:
        InfeasibleBudget: all layers at their maximum save too little, or at their minimum too much; names the
            nearest target.
    """
    low, high = level_bounds(problem)
    free = [curve for curve in problem.curve_set.curves if curve.layer not in problem.fixed]
    bounds = {curve.layer: problem.limits.bounds_of(curve.members, low=low, high=high) for curve in free}

    def moved(offset: float) -> dict[str, float]:
        return {
            **problem.fixed,
            **{curve.layer: _clip(preferred[curve.layer] + offset, bounds[curve.layer]) for curve in free},
        }

    slack = _NEAR * problem.accounting.total(problem.kind)
    required = problem.required
    if (most := problem.saving(moved(1.0))) < required - slack:
        raise infeasible(problem, reachable=most)
    if (least := problem.saving(moved(-1.0))) > required + slack:
        raise infeasible(problem, reachable=least, at_most=False)
    return moved(least_offset(lambda offset: problem.saving(moved(offset)) - required))


def least_offset(spare: Callable[[float], float]) -> float:
    """Return the offset of fractions, in [-1, 1], at which ``spare``, which never falls, stops being negative."""
    if spare(-1.0) >= 0 or spare(1.0) <= 0:
        return -1.0 if spare(-1.0) >= 0 else 1.0
    offset, step = float(brentq(spare, -1.0, 1.0, xtol=_OFFSET_TOLERANCE)), _OFFSET_TOLERANCE
    while spare(offset) < 0 and offset < 1.0:
        offset, step = min(1.0, offset + step), 2 * step
    return offset


def _clip(level: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], level))
