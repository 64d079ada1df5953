"""Input of a scheduling method, and schedules from its levels or from a user's."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from senseapp.core.errors import InfeasibleBudget, InvalidSchedule
from senseapp.descriptions import BudgetKind
from senseapp.metrics import METRICS
from senseapp.records.measurement import RunResult
from senseapp.records.profile import ModelProfile, standardised_note
from senseapp.records.resolution import unseen_below
from senseapp.records.schedule import Limits, ResourceBudget, Schedule, ScheduleEntry
from senseapp.solve.curve_set import CurveSet, check_own_bounds, curves_of, fixed_levels
from senseapp.solve.curves import Accounting, Choice, LayerCurve, Part, check_kind

_UNITS = {"params": "weights", "bytes": "weight bytes", "macs": "multiply-accumulates"}
PRUNING_NOTE = (
    "What neighbouring pruned layers save together is estimated; applying the schedule gives the exact figure."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One scheduling problem; ``fixed`` are levels by first member, ``gamma`` is used by the gamma rule only."""

    curve_set: CurveSet
    accounting: Accounting
    budget: ResourceBudget
    limits: Limits
    fixed: Mapping[str, float]
    gamma: float = 1.5

    @property
    def kind(self) -> BudgetKind:
        """Resource that the budget counts."""
        return self.budget.kind

    @property
    def required(self) -> float:
        """Required saving of all choices together."""
        return self.accounting.required(self.budget)

    def saving(self, levels: Mapping[str, float]) -> float:
        """Return the joint saving of one level per curve."""
        return sum(curve.saving(levels[curve.layer], self.kind) for curve in self.curve_set.curves)


def build_problem(
    result: RunResult,
    budget: ResourceBudget,
    limits: Limits,
    *,
    gamma: float = 1.5,
    metric: str | None = None,
    check_budget: bool = True,
) -> Problem:
    """Build the problem of one run; one of a mixed schedule need not meet the budget alone (``check_budget``)."""
    curve_set = curves_of(result, metric)
    if check_budget:
        check_kind(budget.kind, [curve_set.compression])
    check_own_bounds(curve_set, limits)
    return Problem(
        curve_set=curve_set,
        accounting=Accounting.of(curve_set.profile, curve_set.curves),
        budget=budget,
        limits=limits,
        fixed=fixed_levels(curve_set, limits),
        gamma=gamma,
    )


def infeasible(problem: Problem, *, reachable: float, at_most: bool = True) -> InfeasibleBudget:
    """Return the error with the nearest feasible target; ``reachable`` is the nearest saving."""
    nearest = problem.accounting.figure(problem.kind, reachable)
    sparse_macs = problem.kind == "macs" and problem.curve_set.description.zeroes_weights
    why = f" {standardised_note(problem.curve_set.profile)}".rstrip() if sparse_macs else ""
    because = " with these limits and fixed layers" if problem.fixed or problem.limits != Limits() else ""
    if problem.kind == "bits":
        bound, asked, found = "at least", f"{problem.budget.target:g} bits on average", f"{nearest:.4g} bits"
    else:
        unit = _UNITS[problem.kind]
        bound = "at most" if at_most else "at least"
        asked, found = f"{100 * problem.budget.target:g} % of the {unit} removed", f"{100 * nearest:.4g} %"
    return InfeasibleBudget(
        f"A target of {asked} cannot be met{because}: what was measured allows {bound} {found}. "
        f"The nearest target is {found}.{why}",
        nearest=nearest,
    )


def assemble(
    curve_set: CurveSet,
    accounting: Accounting,
    levels: Mapping[str, float],
    *,
    method: str,
    budget: ResourceBudget | None = None,
    locked: Collection[str] = (),
) -> Schedule:
    """Return the schedule of one level per curve, and of the layers left alone."""
    chosen = [(curve, curve.choice(levels[curve.layer])) for curve in curve_set.curves]
    entries = [
        entry
        for curve, choice in chosen
        for entry in entries_of(curve.layer, curve.members, choice, locked=curve.layer in locked)
    ]
    entries += [
        ScheduleEntry(layer=members[0], members=members, compression="none", level=0.0)
        for members in curve_set.left_alone
    ]
    damage = curve_set.damage({curve.layer: choice for curve, choice in chosen})
    return Schedule(
        model=curve_set.profile.title,
        method=method,
        entries=in_execution_order(entries, curve_set.profile),
        budget=budget,
        metric=curve_set.metric,
        predicted_damage=damage,
        achieved=accounting.figures(choice for _, choice in chosen),
        notes=(
            *curve_set.notes,
            *_predicted_beyond(chosen),
            *((PRUNING_NOTE,) if curve_set.description.removes_channels else ()),
            *hidden_damage(curve_set, damage),
        ),
        file_notes=curve_set.file_notes,
    )


def hidden_damage(curve_set: CurveSet, damage: float) -> tuple[str, ...]:
    """Return a note if a predicted damage is below what the images can show, and that limit is above the tolerable."""
    visible, metric = curve_set.visible, METRICS[curve_set.metric]
    if visible <= metric.notable or damage >= visible:
        return ()
    few = unseen_below(curve_set.num_images, metric.name, visible)
    return (
        f"The predicted {metric.change_text(damage)} cannot be relied on: {few}. Measure on more images, or count harm "
        "to the answers.",
    )


def in_execution_order(entries: Iterable[ScheduleEntry], profile: ModelProfile) -> tuple[ScheduleEntry, ...]:
    """Sort entries by the position of their layer in ``profile``."""
    place = {layer.name: index for index, layer in enumerate(profile.layers)}
    return tuple(sorted(entries, key=lambda entry: place[entry.layer]))


def entries_of(layer: str, members: tuple[str, ...], choice: Choice, *, locked: bool) -> list[ScheduleEntry]:
    """Return one entry for each part of ``choice``, or one that leaves the layer unchanged."""
    unchanged = (Part(compression="none", level=0.0, damage=0.0),)
    return [
        ScheduleEntry(
            layer=layer,
            members=members,
            compression=part.compression,
            level=part.level,
            predicted_damage=part.damage,
            locked=locked,
        )
        for part in choice.parts or unchanged
    ]


def _predicted_beyond(chosen: list[tuple[LayerCurve, Choice]]) -> tuple[str, ...]:
    beyond = [
        curve.layer
        for curve, choice in chosen
        for part in choice.parts
        if curve.scale.strength(part.level) > curve.scale.strength(curve.strongest)
    ]
    if not beyond:
        return ()
    return (
        f"{len(beyond)} layers go beyond the most aggressive level that was measured (first: {beyond[0]}); "
        "their damage is counted as at that level, so the prediction is too low.",
    )


def budget_of(schedule: Schedule, *results: RunResult) -> dict[str, float]:
    """Return the savings of ``schedule``, in the unit of each budget kind, from the costs measured in ``results``.

    Raises InvalidSchedule if a layer was not measured with its compression in any of these runs.
    """
    curve_sets = {curve_set.compression: curve_set for curve_set in map(curves_of, results)}
    choices: dict[str, Choice] = {}
    for entry in schedule.entries:
        if entry.compression == "none":
            continue
        measured = curve_sets.get(entry.compression)
        curve = measured.curve_of(entry.layer) if measured else None
        if curve is None:
            raise InvalidSchedule(
                f"{entry.layer} was not measured with {entry.compression} in this run, so its savings are unknown."
            )
        choice, earlier = curve.choice(entry.level), choices.get(entry.layer)
        choices[entry.layer] = choice if earlier is None else earlier.combined_with(choice)
    first = next(iter(curve_sets.values()))
    return Accounting.of(first.profile, first.curves).figures(choices.values())


def manual_schedule(result: RunResult, levels: Mapping[str, float]) -> Schedule:
    """Return the schedule of a user's levels, with damage predicted from ``result``; other layers are unchanged.

    ``levels`` map layers to fractions or bits, 0 for none. InvalidSchedule if a layer cannot have its level.
    """
    curve_set = curves_of(result)
    fixed = fixed_levels(curve_set, Limits(fixed=levels))
    return assemble(
        curve_set,
        Accounting.of(curve_set.profile, curve_set.curves),
        {curve.layer: fixed.get(curve.layer, curve.scale.untouched) for curve in curve_set.curves},
        method="manual",
        locked=fixed.keys(),
    )
