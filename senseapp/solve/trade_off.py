"""Damage against budget over the measured range, and pruning schedules whose applied size meets the budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.descriptions import BudgetKind
from senseapp.descriptions.levels import whole_units
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup, ModelProfile
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.solve.curves import Choice
from senseapp.solve.methods import METHODS, admissible_levels, levels_of, make_schedule, optimal_choices
from senseapp.solve.problem import PRUNING_NOTE, Problem, build_problem

_MANY_LAYERS = 500  # a schedule takes 0.7 s, and a trade-off has up to 51
_ROUNDS = 8  # most schedules applied to learn their true size
_CLOSE = 0.002  # of the total: indistinguishable from the target for a user
_MOST = 1 - 1e-6  # a budget's fraction lies below 1
_EDGE = 1e-9  # keeps a nearest target, itself rounded, feasible


def with_true_size(
    make: Callable[[float], Schedule], true_fraction: Callable[[Schedule], float], target: float
) -> Schedule:
    """Return the gentlest schedule found whose true size meets ``target``, if only applying it shows its size.

    This is needed for pruning, whose savings overlap: see :class:`~senseapp.solve.curves.Accounting`. ``make`` returns
    the schedule for a predicted fraction removed, ``true_fraction`` the fraction that a schedule truly removes; at most
    :data:`_ROUNDS` schedules are tried.

    Raises InfeasibleBudget if no schedule tried removes enough; ``nearest`` is the largest fraction removed.
    """
    asked, most = target, 0.0
    enough: dict[float, Schedule] = {}
    for _ in range(_ROUNDS):
        schedule, asked = _strongest_up_to(make, asked)
        fraction = true_fraction(schedule)
        most = max(most, fraction)
        if fraction >= target:
            enough[fraction] = schedule
        if target <= fraction <= target + _CLOSE:
            break
        asked += target + _CLOSE / 2 - fraction
    if not enough:
        raise InfeasibleBudget(
            f"A target of {100 * target:g} % cannot be met: the strongest schedule that was tried removes "
            f"{100 * most:.4g} %.",
            nearest=most,
        )
    return enough[min(enough)]


def _strongest_up_to(make: Callable[[float], Schedule], asked: float) -> tuple[Schedule, float]:
    """Return the schedule for ``asked``, or for the nearest feasible fraction, and that fraction."""
    asked = min(_MOST, max(0.0, asked))
    try:
        return make(asked), asked
    except InfeasibleBudget as error:
        nearest = min(_MOST, max(0.0, error.nearest - _EDGE if error.nearest < asked else error.nearest + _EDGE))
        return make(nearest), nearest


def truly_sized(
    make: Callable[[float], Schedule], profile: ModelProfile, groups: Sequence[CoupledGroup], budget: ResourceBudget
) -> Schedule:
    """Return the gentlest schedule found that truly meets ``budget``, with true figures instead of estimates."""
    found = with_true_size(make, lambda tried: true_figures(tried, profile, groups)[budget.kind], budget.target)
    return replace(
        found,
        budget=budget,
        achieved=found.achieved | dict(true_figures(found, profile, groups)),
        notes=tuple(note for note in found.notes if note != PRUNING_NOTE),
    )


def schedule_for(
    result: RunResult,
    budget: ResourceBudget,
    *,
    method: str = "optimal",
    limits: Limits | None = None,
    gamma: float = 1.5,
    metric: str | None = None,
    groups: Sequence[CoupledGroup] = (),
) -> Schedule:
    """Return :func:`make_schedule`; with the coupled ``groups``, a budget of pruning is truly met."""

    def make(target: float) -> Schedule:
        asked = replace(budget, target=target)
        return make_schedule(result, budget=asked, method=method, limits=limits, gamma=gamma, metric=metric)

    return truly_sized(make, result.profile, groups, budget) if groups else make(budget.target)


def too_large(result: RunResult) -> str:
    """Return the size of a run whose trade-off takes too long for a page, in words; empty for others."""
    layers, measurements = len(result.profile.layers), len(result.shown)
    if layers <= _MANY_LAYERS and measurements <= 10_000:
        return ""
    return f"{layers:,} layers with {measurements:,} measurements"


def true_figures(schedule: Schedule, profile: ModelProfile, groups: Sequence[CoupledGroup]) -> dict[BudgetKind, float]:
    """Return the fractions of weights, weight bytes and multiply-accumulates that ``schedule`` truly removes."""
    return true_shares({group.layer: schedule.level_of(group.layer) or 0.0 for group in groups}, profile, groups)


def true_shares(
    ratios: Mapping[str, float], profile: ModelProfile, groups: Sequence[CoupledGroup]
) -> dict[BudgetKind, float]:
    """Return the fractions removed if each group loses the share of its units in ``ratios``, by its first member.

    A layer of (O, I) channels that loses o and i keeps (O − o)(I − i) / (O I) of its weights and of its
    multiply-accumulates, whatever the groups of these channels.
    """
    gone = {  # share of each group's units removed: whole units
        group.layer: whole_units(ratios.get(group.layer, 0.0), group.num_units) / group.num_units for group in groups
    }
    lost: dict[tuple[str, str], float] = {}
    for group in groups:
        for cut in group.axes:
            axis = cut.layer, cut.axis
            lost[axis] = lost.get(axis, 0.0) + gone[group.layer] * cut.share
    kept: dict[str, float] = {}
    for (layer, _), share in lost.items():
        kept[layer] = kept.get(layer, 1.0) * (1 - share)
    params = sum(item.num_params * kept.get(item.name, 1.0) for item in profile.layers)
    macs = sum(item.macs * (1 - kept.get(item.name, 1.0)) for item in profile.layers)
    macs += sum(group.other_macs * gone[group.layer] for group in groups)
    removed = 1 - params / max(1, sum(item.num_params for item in profile.layers))
    return {"params": removed, "bytes": removed, "macs": macs / profile.macs if profile.macs else 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffPoint:
    """One schedule of the trade-off: the target that reproduces it, and its predicted damage.

    ``figure`` is the fraction it truly removes, its average bits, or milliseconds; it may exceed the target.
    """

    kind: str
    target: float
    damage: float
    figure: float


def trade_off(
    result: RunResult,
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
    """Return ``points`` schedules, evenly spaced from the gentlest to the strongest, each solved independently.

    The range is that of the optimal method, so that curves of several methods have the same targets; targets that a
    method cannot meet are left out. With ``step``, targets are multiples of it, as on a slider, and may be fewer. For
    pruning, ``groups`` give true figures. For the other settings see :func:`make_schedule`.

    Raises InvalidSpec for fewer than two points, an unknown method, or a budget that this compression cannot meet.
    """
    if points < 2:
        raise InvalidSpec(f"A trade-off needs at least 2 points, got {points}.")
    if method not in METHODS:
        raise InvalidSpec(f"The method must be one of {', '.join(METHODS)}, got {method!r}.")
    anything = ResourceBudget(kind=kind, target=2.0 if kind == "bits" else 0.0)
    problem = build_problem(result, anything, limits or Limits(), gamma=gamma, metric=metric)
    solve = _solver(problem, method)
    solved = [_point(problem, target, solve, groups) for target in _targets(problem, points, step)]
    return tuple(point for point in solved if point is not None)


def _solver(problem: Problem, method: str) -> Callable[[Problem], Mapping[str, Choice]]:
    """Return a solver of ``problem`` for other amounts; the optimal method keeps its table of choices."""
    if method == "optimal":
        return optimal_choices(problem)

    def choices(asked: Problem) -> dict[str, Choice]:
        levels = METHODS[method](asked)
        return {curve.layer: curve.choice(levels[curve.layer]) for curve in problem.curve_set.curves}

    return choices


def _targets(problem: Problem, points: int, step: float | None) -> list[float]:
    """Return targets from the gentlest effective levels to the strongest, on multiples of ``step``."""
    gentlest, strongest = {}, {}
    for curve in problem.curve_set.curves:
        levels = admissible_levels(problem, curve)
        measured = [level for level in levels if level != curve.scale.untouched] or list(levels)
        gentlest[curve.layer], strongest[curve.layer] = measured[0], levels[-1]
    ends = [problem.accounting.figure(problem.kind, problem.saving(levels)) for levels in (gentlest, strongest)]
    inside = 1e-6 * (ends[1] - ends[0])  # keeps the last point feasible
    spaced = np.linspace(ends[0], ends[1] - inside, points)
    if step is None:
        return [float(target) for target in spaced]
    multiples = dict.fromkeys(round(float(target) / step) for target in spaced)
    low, high = min(ends), max(ends)
    return [target for multiple in multiples if low <= (target := round(multiple * step, 9)) <= high]


def _point(
    problem: Problem, target: float, solve: Callable[[Problem], Mapping[str, Choice]], groups: Sequence[CoupledGroup]
) -> TradeOffPoint | None:
    kind = problem.kind
    try:
        chosen = solve(replace(problem, budget=ResourceBudget(kind=kind, target=target)))
    except InfeasibleBudget:
        return None
    if groups:
        levels = levels_of(chosen, problem.curve_set.description.scale.untouched)
        figure = true_shares(levels, problem.curve_set.profile, groups)[kind]
    else:
        figure = problem.accounting.figure(kind, sum(choice.saving(kind) for choice in chosen.values()))
    return TradeOffPoint(kind=kind, target=target, damage=problem.curve_set.damage(chosen), figure=figure)
