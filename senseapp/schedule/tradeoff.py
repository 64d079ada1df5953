"""Damage against budget, over the whole range that the measurements allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from senseapp.compressions import BudgetKind
from senseapp.errors import InfeasibleBudget, InvalidSpec
from senseapp.results import ResourceBudget, SensitivityResult
from senseapp.results.coupling import CoupledGroup
from senseapp.schedule.methods import METHODS
from senseapp.schedule.optimal import ChoiceTable, admissible_levels
from senseapp.schedule.problem import Problem, pose
from senseapp.schedule.true_size import true_shares
from senseapp.spec.limits import Limits

_INSIDE = 1e-6  # of the range: keeps the last point just feasible


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffPoint:
    """One schedule of the trade-off.

    Attributes:
        kind: what the budget counts.
        target: fraction removed, or average bits; asking :func:`make_schedule` for it gives this schedule.
        damage: predicted, summed over layers.
        figure: what the schedule truly removes, or its average bits; it may be more than was asked for.
    """

    kind: BudgetKind
    target: float
    damage: float
    figure: float


def trade_off(
    result: SensitivityResult,
    kind: BudgetKind,
    points: int = 25,
    *,
    method: str = "optimal",
    limits: Limits | None = None,
    gamma: float = 1.5,
    metric: str | None = None,
    step: float | None = None,
    groups: Sequence[CoupledGroup] = (),
) -> tuple[TradeOffPoint, ...]:
    """Return ``points`` schedules, evenly spaced from the gentlest to the strongest, each solved as on its own.

    The range is that of the optimal method, so that curves of several methods share their targets; targets that a
    method cannot meet are left out.

    Args:
        result: the run whose curves count.
        kind: what the budget counts.
        points: how many; fewer where steps are wider.
        method: of :data:`~senseapp.schedule.methods.METHODS`.
        limits: as for :func:`make_schedule`.
        gamma: likewise.
        metric: likewise.
        step: targets are multiples of it, as a slider's are; None takes any.
        groups: what shrinks together when channels go, for true figures of pruning.

    Raises:
        InvalidSpec: fewer than two points, no such method, or a budget that this compression cannot serve.
        InvalidSchedule: nothing was measured.
    """
    if points < 2:
        raise InvalidSpec(f"A trade-off needs at least 2 points, got {points}.")
    if method not in METHODS:
        raise InvalidSpec(f"The method must be one of {', '.join(METHODS)}, got {method!r}.")
    anything = ResourceBudget(kind=kind, target=2.0 if kind == "bits" else 0.0)
    problem = pose(result, anything, limits or Limits(), gamma=gamma, metric=metric)
    solve = _solver(problem, method)
    solved = [_point(problem, target, solve, groups) for target in _targets(problem, points, step)]
    return tuple(point for point in solved if point is not None)


def _targets(problem: Problem, points: int, step: float | None) -> list[float]:
    """Return figures from the gentlest levels that do something to the strongest, on multiples of ``step``."""
    gentlest, strongest = {}, {}
    for curve in problem.curve_set.curves:
        levels = admissible_levels(problem, curve)
        measured = [level for level in levels if level != curve.scale.untouched] or list(levels)
        gentlest[curve.layer], strongest[curve.layer] = measured[0], levels[-1]
    ends = [problem.accounting.figure(problem.kind, problem.saving(levels)) for levels in (gentlest, strongest)]
    inside = _INSIDE * (ends[1] - ends[0])
    spaced = np.linspace(ends[0], ends[1] - inside, points)
    if step is None:
        return [float(target) for target in spaced]
    multiples = dict.fromkeys(round(float(target) / step) for target in spaced)
    low, high = min(ends), max(ends)
    return [target for multiple in multiples if low <= (target := round(multiple * step, 9)) <= high]


def _solver(problem: Problem, method: str) -> Callable[[Problem], dict[str, float]]:
    """Return the method; the optimal one keeps its table, since only the budget changes from point to point."""
    return ChoiceTable.of(problem).best if method == "optimal" else METHODS[method]


def _point(
    problem: Problem,
    target: float,
    solve: Callable[[Problem], dict[str, float]],
    groups: Sequence[CoupledGroup],
) -> TradeOffPoint | None:
    kind = problem.kind
    try:
        levels = solve(replace(problem, budget=ResourceBudget(kind=kind, target=target)))
    except InfeasibleBudget:
        return None
    damage = sum(curve.choice(levels[curve.layer]).damage for curve in problem.curve_set.curves)
    return TradeOffPoint(kind=kind, target=target, damage=damage, figure=_figure(problem, levels, groups))


def _figure(problem: Problem, levels: Mapping[str, float], groups: Sequence[CoupledGroup]) -> float:
    if groups:
        return true_shares(levels, problem.curve_set.profile, groups)[problem.kind]
    return problem.accounting.figure(problem.kind, problem.saving(levels))
