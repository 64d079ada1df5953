"""The least damage that meets the budget: a multiple-choice knapsack over the curves."""

from __future__ import annotations

import numpy as np

from senseapp.errors import InfeasibleBudget, InvalidSpec
from senseapp.schedule.curves import LayerCurve
from senseapp.schedule.knapsack import solve
from senseapp.schedule.problem import Problem, infeasible

__all__ = ["admissible_levels", "optimal_levels"]


def admissible_levels(problem: Problem, curve: LayerCurve) -> tuple[float, ...]:
    """Return the levels that one layer may take: its grid within the limits, or its fixed level alone.

    Raises:
        InvalidSpec: the limits leave none.
    """
    if curve.layer in problem.fixed:
        return (problem.fixed[curve.layer],)
    limits = problem.limits
    levels = {level for level in curve.grid() if limits.allows(level)}
    if curve.continuous and curve.compression != "quantization":
        bounds = (limits.min_level, limits.max_level)
        levels |= {bound for bound in bounds if bound is not None and 0 <= bound <= curve.strongest}
    if not levels:
        raise InvalidSpec(
            f"The limits leave no level for {curve.layer}, which was measured up to {curve.strongest:g}. Widen them."
        )
    return tuple(sorted(levels, reverse=curve.compression == "quantization"))


def optimal_levels(problem: Problem) -> dict[str, float]:
    """Return the level of each layer that minimises the summed damage under the budget.

    Layers are put in order of their names first, so that the order they come in decides nothing.

    Raises:
        InfeasibleBudget: no choice meets the budget; names the nearest that can be met.
    """
    curves = sorted(problem.curve_set.curves, key=lambda curve: curve.layer)
    levels = [admissible_levels(problem, curve) for curve in curves]
    choices = [curve.choices(own) for curve, own in zip(curves, levels, strict=True)]
    damages = [np.array([choice.damage for choice in own]) for own in choices]
    savings = [np.array([choice.saving(problem.kind) for choice in own]) for own in choices]
    try:
        chosen = solve(damages, savings, problem.required)
    except InfeasibleBudget as error:
        raise infeasible(problem, reachable=error.nearest) from None
    return {curve.layer: own[index] for curve, own, index in zip(curves, levels, chosen, strict=True)}
