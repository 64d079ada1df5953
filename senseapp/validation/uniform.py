"""The uniform schedule of equal cost, which a schedule must beat."""

from __future__ import annotations

from senseapp.compressions import BudgetKind
from senseapp.errors import InfeasibleBudget, InvalidSpec
from senseapp.results import ResourceBudget, Schedule
from senseapp.schedule import make_schedule, true_figures, truly_sized
from senseapp.validation.apply import AppliedModel
from senseapp.validation.bench import TestBench
from senseapp.validation.sizes import sizes_of
from senseapp.validation.true_size import couplings_of


def true_figure(bench: TestBench, applied: AppliedModel, kind: BudgetKind) -> float:
    """Return what a budget of ``kind`` counts, of the model as it truly is."""
    before, after = sizes_of(applied, bench.dense.model)
    return after.figure(kind, before)


def uniform_of_equal_cost(bench: TestBench, schedule: Schedule, applied: AppliedModel) -> tuple[Schedule | None, str]:
    """Return the uniform schedule that costs as much as ``schedule`` truly does, or why there is none.

    Where levels in between do not exist (bits) it may save more than ``schedule``; the sentence says so.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    compression = bench.result.spec.sensitivity.compression.description
    if kinds != {compression.name}:
        return None, "A uniform schedule is compared only with schedules of the run's own compression."
    kind = schedule.budget.kind if schedule.budget else compression.equal_cost
    target = true_figure(bench, applied, kind)
    if schedule.budget and kind == "bits":
        target = max(target, schedule.budget.target)  # whole bits: what was asked for can be met by all layers

    def make(fraction: float) -> Schedule:
        return make_schedule(
            bench.result, budget=ResourceBudget(kind=kind, target=fraction), method="uniform", metric=schedule.metric
        )

    try:
        if groups := couplings_of(bench.dense.model, bench.result):
            figure = true_figures(schedule, bench.result.profile, groups)[kind]
            uniform = truly_sized(make, bench.result.profile, groups, ResourceBudget(kind=kind, target=figure))
        else:
            uniform = make(target)
    except (InfeasibleBudget, InvalidSpec) as error:
        return None, f"There is no uniform schedule of equal cost. {error}"
    cost = true_figure(bench, bench.apply(uniform), kind)
    if kind == "bits" and cost < target - 0.05:
        return uniform, f"The uniform schedule has {cost:.3g} bits on average: no common level lies nearer."
    return uniform, ""
