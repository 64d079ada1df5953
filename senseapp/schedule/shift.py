"""Shift preferred levels by one common offset until they just meet the budget."""

from __future__ import annotations

from collections.abc import Mapping

from senseapp.errors import InvalidSpec
from senseapp.schedule.curves import LayerCurve
from senseapp.schedule.problem import Problem, infeasible

__all__ = ["level_bounds", "require_fractions", "shift_to_budget"]

DEFAULT_MAXIMUM = 0.9  # fasterai's own, unless a stronger level was measured
_HALVINGS = 50
_NEAR = 1e-12  # of the total: rounding must not decide whether a bound is feasible


def require_fractions(problem: Problem, *, method: str) -> None:
    """Raise InvalidSpec unless layers can take any fraction."""
    if problem.curve_set.compression == "quantization":
        raise InvalidSpec(f"The {method} method sets fractions, not bits. For quantization choose the optimal method.")
    if not all(curve.continuous for curve in problem.curve_set.curves):
        raise InvalidSpec(f"The {method} method needs levels in between, which 2:4 sparsity does not have.")


def level_bounds(problem: Problem) -> tuple[float, float]:
    """Return the lowest and highest fraction of the layers that are not fixed."""
    low = problem.limits.min_level or 0.0
    high = problem.limits.max_level
    if high is None:
        high = max(DEFAULT_MAXIMUM, *(curve.strongest for curve in problem.curve_set.curves))
    if not 0 <= low <= high < 1:
        raise InvalidSpec(
            f"The limits must satisfy 0 % <= minimum <= maximum < 100 %, got {100 * low:g} % and {100 * high:g} %."
        )
    return low, high


def shift_to_budget(problem: Problem, preferred: Mapping[str, float]) -> dict[str, float]:
    """Return the preferred levels, moved together and clipped to the limits, with the least offset that saves enough.

    Raises:
        InfeasibleBudget: all layers at their maximum save too little, or at their minimum too much; names the
            nearest target.
    """
    low, high = level_bounds(problem)
    free = [curve for curve in problem.curve_set.curves if curve.layer not in problem.fixed]

    def moved(offset: float) -> dict[str, float]:
        return {**problem.fixed, **{curve.layer: _clip(curve, preferred, offset, low, high) for curve in free}}

    slack = _NEAR * problem.accounting.total(problem.kind)
    required = problem.required
    if (most := problem.saving(moved(1.0))) < required - slack:
        raise infeasible(problem, reachable=most)
    if (least := problem.saving(moved(-1.0))) > required + slack:
        raise infeasible(problem, reachable=least, at_most=False)
    below, above = -1.0, 1.0
    for _ in range(_HALVINGS):
        offset = 0.5 * (below + above)
        if problem.saving(moved(offset)) < required:
            below = offset
        else:
            above = offset
    return moved(above)


def _clip(curve: LayerCurve, preferred: Mapping[str, float], offset: float, low: float, high: float) -> float:
    return min(high, max(low, preferred[curve.layer] + offset))
