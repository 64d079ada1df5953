"""Two compressions chosen together, per layer, under one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from senseapp.compressions import get, names
from senseapp.core.errors import InfeasibleBudget, InvalidSchedule, InvalidSpec
from senseapp.records.limits import Limits
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import ResourceBudget, Schedule
from senseapp.schedules.accounting import check_kind
from senseapp.schedules.curve_set import damage_metric
from senseapp.schedules.curves import Choice
from senseapp.schedules.knapsack import solve
from senseapp.schedules.methods import admissible_levels
from senseapp.schedules.problem import Problem, build_problem, entries_of, hidden_damage, in_execution_order, infeasible

_ADDITIVE = "Where a layer gets two compressions, their measured damages are added; verify the schedule."


def mixed_schedule(
    first: SensitivityResult,
    second: SensitivityResult,
    *,
    budget: ResourceBudget,
    limits: Mapping[str, Limits] | None = None,
    metric: str | None = None,
) -> Schedule:
    """Return for each layer nothing, a level of either compression, or both, with the least summed damage.

    A layer that gets both has two entries, in the order of application: weights are zeroed, then rounded.

    Args:
        first: a run of a model, for instance of sparsity.
        second: a run of the same model with a compression that goes together with it; their order does not matter.
        budget: usually of ``bytes``, which both serve; see :func:`~senseapp.schedules.curves.weight_bytes`.
        limits: by name of the compression; missing ones mean no limits.
        metric: what damage is counted in, in both runs; None takes KL where both measured it.

    Raises:
        InvalidSpec: the compressions do not go together, the runs share no metric, or the budget fits neither.
        InvalidSchedule: the runs are of two models.
        InfeasibleBudget: nothing meets the budget; names the nearest target.
    """
    results = sorted((first, second), key=lambda result: result.spec.sensitivity.compression.description.order)
    problems = _problems_of(results, budget, limits or {}, _shared_metric(first, second, metric))
    choices = _choices_by_layer(problems)
    layers = sorted(choices)
    damages = [np.array([choice.damage for choice in choices[layer]]) for layer in layers]
    savings = [np.array([choice.saving(budget.kind) for choice in choices[layer]]) for layer in layers]
    try:
        chosen = solve(damages, savings, problems[0].required)
    except InfeasibleBudget as error:
        raise infeasible(problems[0], reachable=error.nearest) from None
    picked = {layer: choices[layer][index] for layer, index in zip(layers, chosen, strict=True)}
    return _assembled(picked, problems, first.profile)


def _shared_metric(first: SensitivityResult, second: SensitivityResult, metric: str | None) -> str:
    name = damage_metric(first, metric)
    if name != damage_metric(second, metric):
        raise InvalidSpec(
            f"Damage must be counted in one metric, but the runs offer {name} and {damage_metric(second, metric)}. "
            "Name a metric that both measured."
        )
    return name


def _problems_of(
    results: Sequence[SensitivityResult], budget: ResourceBudget, limits: Mapping[str, Limits], metric: str
) -> tuple[Problem, ...]:
    compressions = [result.spec.sensitivity.compression.description for result in results]
    kinds = [compression.name for compression in compressions]
    if kinds[1] not in compressions[0].partners:
        raise InvalidSpec(f"A mixed schedule takes one {_pairs()} run, got {' and '.join(kinds)}.")
    names = [[layer.name for layer in result.profile.layers] for result in results]
    if names[0] != names[1]:
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
    """Name the compressions that go together: ``sparsity and one quantization``."""
    pairs = {tuple(sorted((each, partner), key=names().index)) for each in names() for partner in get(each).partners}
    return " run, or one ".join(" and one ".join(pair) for pair in sorted(pairs))


def _choices_by_layer(problems: Sequence[Problem]) -> dict[str, tuple[Choice, ...]]:
    """Return every pair of choices of each layer; a layer in one run only has that run's choices."""
    first, second = (
        {curve.layer: curve.choices(admissible_levels(problem, curve)) for curve in problem.curve_set.curves}
        for problem in problems
    )
    merged = {**first, **second}
    for layer in first.keys() & second.keys():
        merged[layer] = tuple(one.beside(other) for one in first[layer] for other in second[layer])
    return merged


def _assembled(picked: Mapping[str, Choice], problems: Sequence[Problem], profile: ModelProfile) -> Schedule:
    locked = {layer for problem in problems for layer in problem.fixed}
    entries = [
        entry
        for layer, choice in picked.items()
        for entry in entries_of(layer, (layer,), choice, locked=layer in locked)
    ]
    damage = sum(choice.damage for choice in picked.values())
    notes = [
        note for problem in problems for note in (*problem.curve_set.notes, *hidden_damage(problem.curve_set, damage))
    ]
    return Schedule(
        model=profile.title,
        method="optimal",
        entries=in_execution_order(entries, profile),
        budget=problems[0].budget,
        metric=problems[0].curve_set.metric,
        predicted_damage=damage,
        achieved=problems[0].accounting.figures(picked.values()),
        notes=(*dict.fromkeys(notes), _ADDITIVE),
    )
