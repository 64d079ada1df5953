"""Scheduling methods by name (optimal, gamma, uniform), and optimal schedules of two compressions together."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.descriptions import BudgetKind, get, names, tidy_level
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.solve.curve_set import damage_metric
from senseapp.solve.curves import Choice, LayerCurve, check_kind
from senseapp.solve.gamma import level_bounds, offset_to_budget, scheduled_levels
from senseapp.solve.knapsack import solve
from senseapp.solve.problem import (
    Problem,
    assemble,
    build_problem,
    entries_of,
    hidden_damage,
    in_execution_order,
    infeasible,
)

_ADDITIVE = "Where a layer gets two compressions, their measured damages are added; verify the schedule."


def admissible_levels(problem: Problem, curve: LayerCurve) -> tuple[float, ...]:
    """Return the levels allowed for one layer: its grid within the limits, or its fixed level; else InvalidSpec."""
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


class ChoiceTable:
    """Damage and saving of every choice of every layer, sorted by name, so that results do not depend on order."""

    def __init__(self, choices: Mapping[str, Sequence[Choice]], kind: BudgetKind) -> None:
        self.choices = dict(sorted(choices.items()))
        self.damages = [np.array([choice.damage for choice in own]) for own in self.choices.values()]
        self.savings = [np.array([choice.saving(kind) for choice in own]) for own in self.choices.values()]

    def best(self, problem: Problem, *, around: Mapping[str, Choice] | None = None) -> dict[str, Choice]:
        """Return the choice of each layer that minimises the summed damage under the problem's budget.

        With ``around``, damages are those that each choice adds to the other layers' choices of that schedule.
        """
        damages = self.damages if around is None else self._damages_around(problem, around)
        try:
            chosen = solve(damages, self.savings, problem.required)
        except InfeasibleBudget as error:
            raise infeasible(problem, reachable=error.nearest) from None
        return {layer: own[index] for (layer, own), index in zip(self.choices.items(), chosen, strict=True)}

    def _damages_around(self, problem: Problem, chosen: Mapping[str, Choice]) -> list[NDArray[np.float64]]:
        curve_set = problem.curve_set
        assert curve_set.joint is not None
        interactions = curve_set.joint.interactions(curve_set.curves, chosen)
        scale, found = curve_set.description.scale, []
        for (layer, choices), damages in zip(self.choices.items(), self.damages, strict=True):
            if layer in interactions:
                levels = [choice.parts[0].level if choice.parts else scale.untouched for choice in choices]
                damages = damages + np.interp([scale.strength(level) for level in levels], *interactions[layer])
            found.append(damages - min(0.0, damages.min()))  # a constant per layer does not affect the choice
        return found


def choices_by_layer(problem: Problem) -> dict[str, tuple[Choice, ...]]:
    """Return the admissible choices of each layer, gentlest first."""
    curves = problem.curve_set.curves
    return {curve.layer: curve.choices(admissible_levels(problem, curve)) for curve in curves}


def optimal_choices(problem: Problem) -> Callable[[Problem], dict[str, Choice]]:
    """Return a solver for ``problem`` and others that differ from it only in the amount of the budget."""
    return partial(_best_together, ChoiceTable(choices_by_layer(problem), problem.kind))


def _best_together(table: ChoiceTable, problem: Problem) -> dict[str, Choice]:
    """Return the choices of least joint damage found, if interactions are known.

    The knapsack is solved again around the last result while that lowers the damage on both halves of the images: an
    improvement on one half alone is chance, and one of less than 1 % is not worth a round. The interaction model is
    skipped above 1 nat of predicted damage, where changes do not add up.
    """
    found, joint = table.best(problem), problem.curve_set.joint
    if joint is None:
        return found
    damages = joint.halves(found)
    for _ in range(8):
        if max(damages) > 50 * joint.metric.notable:  # 1 nat of divergence
            break
        tried = table.best(problem, around=found)
        less = joint.halves(tried)
        if not all(after < 0.99 * before for before, after in zip(damages, less, strict=True)):
            break
        found, damages = tried, less
    return found


def optimal_levels(problem: Problem) -> dict[str, float]:
    """Return the level of each layer that minimises the damage under the budget: a knapsack over the curves."""
    return levels_of(optimal_choices(problem)(problem), problem.curve_set.description.scale.untouched)


def levels_of(choices: Mapping[str, Choice], untouched: float) -> dict[str, float]:
    """Return the level of each layer's choice; ``untouched`` if it has no part."""
    return {layer: choice.parts[0].level if choice.parts else untouched for layer, choice in choices.items()}


def uniform_levels(problem: Problem) -> dict[str, float]:
    """Return one common level for all layers that are not fixed, the gentlest that meets the budget.

    For compressions without intermediate levels (bits, 2:4), this is the gentlest level that was measured on every
    layer and saves enough; it may save more than required.
    """
    curves = problem.curve_set.curves
    if problem.curve_set.description.scale.any_between and all(curve.continuous for curve in curves):
        low, _ = level_bounds(problem)
        return offset_to_budget(problem, {curve.layer: low for curve in curves})
    free = [curve for curve in curves if curve.layer not in problem.fixed]
    bounds = [(curve.grid(), *problem.limits.bounds_of(curve.members)) for curve in free]
    levels_of_first = free[0].grid() if free else (0.0,)
    common = [
        level for level in levels_of_first if all(level in grid and low <= level <= high for grid, low, high in bounds)
    ]
    reachable = 0.0
    for level in common:
        levels = {**problem.fixed, **{curve.layer: level for curve in free}}
        reachable = problem.saving(levels)
        if reachable >= problem.required * (1 - 1e-9):
            return levels
    raise infeasible(problem, reachable=reachable)


METHODS: Mapping[str, Callable[[Problem], dict[str, float]]] = {
    "optimal": optimal_levels,
    "gamma": scheduled_levels,
    "uniform": uniform_levels,
}


def make_schedule(
    result: RunResult,
    *,
    budget: ResourceBudget,
    method: str = "optimal",
    limits: Limits | None = None,
    gamma: float = 1.5,
    metric: str | None = None,
) -> Schedule:
    """Return one level per layer (or coupled group) that meets ``budget``, over all layers, measured or not.

    ``method`` is ``optimal`` (least predicted damage), ``gamma`` (the gamma rule, with the exponent ``gamma``) or
    ``uniform``. ``limits`` are bounds and fixed levels. ``metric`` is that of damage; None: KL if it was measured, else
    the run's own. Measured values take precedence over estimates.

    Raises InfeasibleBudget, with the nearest feasible target, if no schedule meets the budget; InvalidSpec for an
    unknown method, a limit out of range, or a budget that this compression cannot meet; InvalidSchedule if nothing was
    measured, or a fixed layer cannot be scheduled.
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


def mixed_schedule(
    first: RunResult, second: RunResult, *, budget: ResourceBudget, limits: Mapping[str, Limits] | None = None
) -> Schedule:
    """Return for each layer no compression, a level of either, or both, with the least summed damage.

    A layer with both has two entries, in the order of application: weights are zeroed, then rounded. The two runs are
    of one model, with compressions that can be combined, in any order; ``budget`` is usually of ``bytes``, which both
    save. ``limits`` are by name of the compression. Damage is counted in KL if both measured it.

    Raises InfeasibleBudget, with the nearest target, if no schedule meets the budget; InvalidSpec if the compressions
    cannot be combined, the runs share no metric, or the budget fits neither; InvalidSchedule for runs of two models.
    """
    name, other = damage_metric(first), damage_metric(second)
    if name != other:
        raise InvalidSpec(f"Damage must be counted in one metric, but the runs offer {name} and {other}.")
    results = sorted((first, second), key=lambda result: result.compression.description.order)
    problems = _problems_of(results, budget, limits or {}, name)
    picked = ChoiceTable(_paired_choices(problems), budget.kind).best(problems[0])
    locked = {layer for problem in problems for layer in problem.fixed}
    entries = [
        entry
        for layer, choice in picked.items()
        for entry in entries_of(layer, (layer,), choice, locked=layer in locked)
    ]
    damage = sum(choice.damage for choice in picked.values())
    curve_sets = [problem.curve_set for problem in problems]
    notes = [note for each in curve_sets for note in (*each.notes, *hidden_damage(each, damage))]
    return Schedule(
        model=first.profile.title,
        method="optimal",
        entries=in_execution_order(entries, first.profile),
        budget=budget,
        metric=name,
        predicted_damage=damage,
        achieved=problems[0].accounting.figures(picked.values()),
        notes=(*dict.fromkeys(notes), _ADDITIVE),
        file_notes=tuple(note for each in curve_sets for note in each.file_notes),
    )


def _problems_of(
    results: Sequence[RunResult], budget: ResourceBudget, limits: Mapping[str, Limits], metric: str
) -> tuple[Problem, ...]:
    compressions = [result.compression.description for result in results]
    kinds = [compression.name for compression in compressions]
    if kinds[1] not in compressions[0].partners:
        raise InvalidSpec(f"A mixed schedule takes one {_pairs()} run, got {' and '.join(kinds)}.")
    layers = [[layer.name for layer in result.profile.layers] for result in results]
    if layers[0] != layers[1]:
        raise InvalidSchedule(
            f"The two runs are of different models ({results[0].profile.title} and {results[1].profile.title}). "
            "Choose two runs of one model."
        )
    check_kind(budget.kind, kinds)
    return tuple(
        build_problem(result, budget, limits.get(kind, Limits()), metric=metric, check_budget=False)
        for result, kind in zip(results, kinds, strict=True)
    )


def _pairs() -> str:
    """Return the names of compressions that can be combined: ``sparsity and one quantization``."""
    pairs = {tuple(sorted((each, partner), key=names().index)) for each in names() for partner in get(each).partners}
    return " run, or one ".join(" and one ".join(pair) for pair in sorted(pairs))


def _paired_choices(problems: Sequence[Problem]) -> dict[str, tuple[Choice, ...]]:
    """Return every pair of choices of each layer; a layer in only one run has that run's choices."""
    first, second = map(choices_by_layer, problems)
    merged = {**first, **second}
    for layer in first.keys() & second.keys():
        merged[layer] = tuple(one.combined_with(other) for one in first[layer] for other in second[layer])
    return merged
