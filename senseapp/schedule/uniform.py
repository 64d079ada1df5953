"""The same level for every layer: what a schedule must beat at equal cost."""

from __future__ import annotations

from senseapp.schedule.curves import LayerCurve
from senseapp.schedule.problem import Problem, infeasible
from senseapp.schedule.shift import level_bounds, shift_to_budget


def uniform_levels(problem: Problem) -> dict[str, float]:
    """Return one common level for all layers that are not fixed, the gentlest that meets the budget.

    Where levels in between do not exist (bits, 2:4), the gentlest level that was measured on every layer and saves
    enough is taken; it may save more than asked.

    Raises:
        InvalidSpec: the limits are out of range.
        InfeasibleBudget: no common level meets the budget; names the nearest.
    """
    curves = problem.curve_set.curves
    if problem.curve_set.description.scale.any_between and all(curve.continuous for curve in curves):
        low, _ = level_bounds(problem)
        return shift_to_budget(problem, {curve.layer: low for curve in curves})
    return _gentlest_common(problem)


def _gentlest_common(problem: Problem) -> dict[str, float]:
    free = [curve for curve in problem.curve_set.curves if curve.layer not in problem.fixed]
    common = (
        [level for level in free[0].grid() if all(_allowed(problem, curve, level) for curve in free)] if free else [0.0]
    )
    reachable = 0.0
    for level in common:
        levels = {**problem.fixed, **{curve.layer: level for curve in free}}
        reachable = problem.saving(levels)
        if reachable >= problem.required * (1 - 1e-9):
            return levels
    raise infeasible(problem, reachable=reachable)


def _allowed(problem: Problem, curve: LayerCurve, level: float) -> bool:
    least, most = problem.limits.bounds_of(curve.members)
    return level in curve.grid() and least <= level <= most
