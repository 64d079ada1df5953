"""The least damage that meets the budget: a multiple-choice knapsack over the curves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.errors import InfeasibleBudget, InvalidSpec
from senseapp.schedule.curves import LayerCurve
from senseapp.schedule.knapsack import solve
from senseapp.schedule.problem import Problem, infeasible


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
    """Damage and saving of every admissible level of every layer, layers in order of their names.

    That order makes the solution independent of the order in which layers come.
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
    """Return the level of each layer that minimises the summed damage under the budget.

    Raises:
        InvalidSpec: the limits leave a layer without any level.
        InfeasibleBudget: no choice meets the budget; names the nearest that can be met.
    """
    return ChoiceTable.of(problem).best(problem)
