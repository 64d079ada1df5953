"""The scheduling methods by name: least damage for a budget, the classic rule, or one level for every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.compressions import tidy_level
from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.records.limits import Limits
from senseapp.records.measurement import SensitivityResult
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.schedules.curves import LayerCurve
from senseapp.schedules.gamma import level_bounds, scheduled_levels, shift_to_budget
from senseapp.schedules.knapsack import solve
from senseapp.schedules.problem import Problem, assemble, build_problem, infeasible


def admissible_levels(problem: Problem, curve: LayerCurve) -> tuple[float, ...]:
    """Return the levels that one layer may take: its grid within the limits, or its fixed level alone.

    Raises:
        InvalidSpec: the limits leave none.
    """
    if curve.layer in problem.fixed:
        return (problem.fixed[curve.layer],)
    bounds = problem.limits.bounds_of(curve.members)
    levels = {level for level in curve.grid() if bounds[0] <= level <= bounds[1]}
    if curve.continuous and curve.scale.any_between:
        levels |= {bound for bound in bounds if 0 <= bound <= curve.strongest}
    if not levels:
        raise InvalidSpec(
            f"The limits leave no level for {curve.layer}, which was measured up to {curve.strongest:g}. Widen them."
        )
    return tuple(curve.scale.sorted(levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTable:
    """Damage and saving of every admissible level of every layer.

    Layers are in order of their names, so that the solution does not depend on the order in which they come.
    """

    layers: tuple[str, ...]
    levels: tuple[tuple[float, ...], ...]
    damages: tuple[NDArray[np.float64], ...]
    savings: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, problem: Problem) -> ChoiceTable:
        """Tabulate ``problem``."""
        curves = sorted(problem.curve_set.curves, key=lambda curve: curve.layer)
        levels = tuple(admissible_levels(problem, curve) for curve in curves)
        choices = [curve.choices(own) for curve, own in zip(curves, levels, strict=True)]
        return cls(
            layers=tuple(curve.layer for curve in curves),
            levels=levels,
            damages=tuple(np.array([choice.damage for choice in own]) for own in choices),
            savings=tuple(np.array([choice.saving(problem.kind) for choice in own]) for own in choices),
        )

    def best(self, problem: Problem) -> dict[str, float]:
        """Return the level of each layer that minimises the summed damage under the problem's budget.

        Raises:
            InfeasibleBudget: no choice meets the budget; names the nearest that can be met.
        """
        try:
            chosen = solve(self.damages, self.savings, problem.required)
        except InfeasibleBudget as error:
            raise infeasible(problem, reachable=error.nearest) from None
        return {layer: own[index] for layer, own, index in zip(self.layers, self.levels, chosen, strict=True)}


def optimal_levels(problem: Problem) -> dict[str, float]:
    """Return the level of each layer that minimises the summed damage under the budget: a knapsack over the curves."""
    return ChoiceTable.of(problem).best(problem)


def uniform_levels(problem: Problem) -> dict[str, float]:
    """Return one common level for all layers that are not fixed, the gentlest that meets the budget.

    Where levels in between do not exist (bits, 2:4), the gentlest level that was measured on every layer and saves
    enough is taken; it may save more than asked.
    """
    curves = problem.curve_set.curves
    if problem.curve_set.description.scale.any_between and all(curve.continuous for curve in curves):
        low, _ = level_bounds(problem)
        return shift_to_budget(problem, {curve.layer: low for curve in curves})
    free = [curve for curve in curves if curve.layer not in problem.fixed]
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


METHODS: Mapping[str, Callable[[Problem], dict[str, float]]] = {
    "optimal": optimal_levels,
    "gamma": scheduled_levels,
    "uniform": uniform_levels,
}


def make_schedule(
    result: SensitivityResult,
    *,
    budget: ResourceBudget,
    method: str = "optimal",
    limits: Limits | None = None,
    gamma: float = 1.5,
    metric: str | None = None,
) -> Schedule:
    """Return one level per layer (or coupled group) that meets ``budget``.

    Args:
        result: the run whose curves count; measured values win over estimates.
        budget: what must be saved, of all compressible layers of the model, measured or not.
        method: ``optimal`` (least summed damage), ``gamma`` (the classic rule) or ``uniform``.
        limits: bounds and fixed levels; None means neither.
        gamma: exponent of the classic rule.
        metric: what damage is counted in; None takes KL where it was measured, else the run's own metric.

    Raises:
        InvalidSpec: no such method, a limit out of range, or a budget that this compression cannot serve.
        InvalidSchedule: nothing was measured, or a fixed layer cannot be scheduled.
        InfeasibleBudget: nothing meets the budget; names the nearest target that can be met.
    """
    if method not in METHODS:
        raise InvalidSpec(f"The method must be one of {', '.join(METHODS)}, got {method!r}.")
    problem = build_problem(result, budget, limits or Limits(), gamma=gamma, metric=metric)
    levels = METHODS[method](problem)
    return assemble(
        problem.curve_set,
        problem.accounting,
        {layer: tidy_level(level) for layer, level in levels.items()},
        method=method,
        budget=budget,
        locked=problem.fixed.keys(),
    )
