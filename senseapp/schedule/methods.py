"""The scheduling methods by name, and the one call that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from senseapp.errors import InvalidSpec
from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.schedule.gamma import scheduled_levels
from senseapp.schedule.optimal import optimal_levels
from senseapp.schedule.problem import Problem, pose, schedule_of
from senseapp.schedule.uniform import uniform_levels
from senseapp.spec.limits import Limits

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
    problem = pose(result, budget, limits or Limits(), gamma=gamma, metric=metric)
    return schedule_of(problem, METHODS[method](problem), method=method)
