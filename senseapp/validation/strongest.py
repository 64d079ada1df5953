"""The strongest compression whose measured drop stays within what a person allows."""

from __future__ import annotations

from senseapp.errors import InfeasibleBudget, InvalidSpec
from senseapp.results import ResourceBudget, Schedule
from senseapp.results.schedule import BudgetKind
from senseapp.schedule import make_schedule, strongest_within, trade_off
from senseapp.validation.bench import TestBench

__all__ = ["strongest_schedule"]


def strongest_schedule(
    bench: TestBench, kind: BudgetKind, allowed_drop: float, *, metric: str = "", repair: bool = False, rounds: int = 6
) -> Schedule:
    """Return the strongest optimal schedule found whose measured drop is at most ``allowed_drop``, by bisection.

    Drops are measured on the curves' images, so that the proof images can still judge the outcome.

    Args:
        bench: the model and the images.
        kind: the budget that is tightened.
        allowed_drop: in the unit of ``metric``: a fraction for top-1, nats for loss and KL.
        metric: what must not drop; empty takes the run's own.
        repair: measure after repair.
        rounds: schedules measured between the gentlest and the strongest.

    Raises:
        InfeasibleBudget: even the gentlest schedule drops more; ``nearest`` is its drop.
        InvalidSpec: the metric cannot be measured here, or the budget does not fit the compression.
    """
    name = metric or bench.result.metric

    def make(target: float) -> Schedule:
        return make_schedule(bench.result, budget=ResourceBudget(kind=kind, target=target))

    def measured_drop(schedule: Schedule) -> float:
        applied = bench.apply(schedule)
        if repair:
            bench.repair(applied)
        found = {change.metric: change.delta for change in bench.measure(applied, bench.images.curves)}
        if name not in found:
            raise InvalidSpec(f"{name} cannot be measured on these images; choose one of {', '.join(found)}.")
        return found[name]

    targets = [point.target for point in trade_off(bench.result, kind)]
    if not targets:
        raise InfeasibleBudget(f"No {kind} budget can be met with what was measured.", nearest=0.0)
    return strongest_within(
        make, measured_drop, allowed_drop, gentlest=targets[0], strongest=targets[-1], rounds=rounds
    )
