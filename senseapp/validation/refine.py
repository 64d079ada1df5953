"""Where layers together lose more than predicted: measure them around the compressed model, and solve again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from senseapp.errors import SenseError
from senseapp.metrics import METRICS
from senseapp.results import LayerMeasurement, MetricChange, ResourceBudget, Schedule, SensitivityResult
from senseapp.results.measurement import change_in
from senseapp.schedule import Limits, make_schedule, manual_schedule, true_figures, truly_sized
from senseapp.validation.around import Around
from senseapp.validation.bench import TestBench
from senseapp.validation.repair_choice import measured

_NEGLIGIBLE = 0.002  # nats, or 0.2 points: another schedule could win nothing that matters


def disagrees(predicted: float, measured: MetricChange) -> bool:
    """Return whether the predicted damage lies outside of the interval of the measured one."""
    return not measured.ci_low <= predicted <= measured.ci_high


def refine(
    bench: TestBench, schedule: Schedule, *, rounds: int, repair: bool, progress: Callable[[str], None]
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Return the best schedule found in at most ``rounds`` rounds, how many were made, and sentences on them.

    A round measures, for each layer and level, the damage of the whole compressed model with only that layer
    changed, less its damage with that layer untouched: the layer's own share around this schedule. The schedule
    solved from these shares takes over if it does less damage on the curves' images, repaired or not, whichever is
    better, where repair is asked for; shares are measured with repair where the schedule is better with it. There is
    no round where the damage is no more than predicted, or too little to be worth one. Only optimal schedules are
    solved again.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    solvable = schedule.method == "optimal" and schedule.budget is not None
    if rounds < 2 or not solvable or kinds != {bench.result.spec.sensitivity.compression.kind}:
        return schedule, 1, ()
    best, used = schedule, 1
    first, repairs = _damage(bench, schedule, repair)
    damage = first
    while used < rounds and damage is not None and _worth_a_round(best, damage):
        progress(f"Round {used + 1} of at most {rounds}: measuring the layers around the compressed model")
        again = _solved_around(bench, best, damage, repairs, progress)
        if again is None:
            break
        used += 1
        found, does = _damage(bench, again, repair)
        if found is None or not found.delta < damage.delta:
            break
        best, damage, repairs = again, found, does
    if used == 1 or first is None or damage is None:
        return schedule, 1, ()
    return best, used, (_sentence(schedule, best, first, damage, used),)


def _worth_a_round(schedule: Schedule, damage: MetricChange) -> bool:
    return schedule.predicted_damage < damage.ci_low and damage.delta > _NEGLIGIBLE


def _sentence(asked: Schedule, best: Schedule, first: MetricChange, last: MetricChange, used: int) -> str:
    predicted, measured, found = (
        METRICS[asked.metric].change_text(loss) for loss in (asked.predicted_damage, first.delta, last.delta)
    )
    start = (
        f"The predicted loss, {predicted}, and the measured one, {measured}, disagreed, so the layers were measured "
        f"again around the compressed model ({used} rounds); "
    )
    if best is asked:
        return start + "no better schedule was found."
    return start + f"the schedule solved from that loses {found} on the same images."


def _damage(bench: TestBench, schedule: Schedule, repair: bool) -> tuple[MetricChange | None, bool]:
    """Return the damage on the curves' images, of the better of repaired and not, and whether that is the repaired."""
    curves = bench.images.curves
    found = measured(bench, bench.apply(schedule), schedule.metric, repair=repair, images=curves)
    return change_in(found.best, schedule.metric), found.delivered == "repaired"


def _solved_around(
    bench: TestBench, schedule: Schedule, damage: MetricChange, repair: bool, progress: Callable[[str], None]
) -> Schedule | None:
    around = Around.open(bench, schedule, repair=repair)
    if around is None:
        return None
    shares = list(around.shares(progress))
    try:
        # Shares measured around a schedule need not add up to its damage; scaled, they do.
        total = manual_schedule(_with_shares(bench.result, shares), around.levels, metric=schedule.metric)
        factor = damage.delta / total.predicted_damage if total.predicted_damage > 0 else 1.0
        renewed = _with_shares(bench.result, [_scaled(share, factor) for share in shares])
        return _solved(renewed, schedule, around)
    except SenseError:  # what was measured around a broken model may allow no schedule: the one asked for stays
        return None


def _solved(result: SensitivityResult, schedule: Schedule, around: Around) -> Schedule:
    """Return the optimal schedule for ``result`` that costs what ``schedule`` does; truly so, where channels go."""
    asked, locked = schedule.budget, {entry.layer: entry.level for entry in schedule.entries if entry.locked}
    assert asked is not None

    def make(target: float) -> Schedule:
        budget = replace(asked, target=target)
        return make_schedule(result, budget=budget, metric=schedule.metric, limits=Limits(fixed=locked))

    if not around.couplings:
        return make(asked.target)
    true = true_figures(schedule, result.profile, around.couplings)[asked.kind]
    sized = truly_sized(make, result.profile, around.couplings, ResourceBudget(kind=asked.kind, target=true))
    return replace(sized, budget=asked)


def _scaled(share: LayerMeasurement, factor: float) -> LayerMeasurement:
    return replace(share, changes=tuple(replace(change, delta=factor * change.delta) for change in share.changes))


def _with_shares(result: SensitivityResult, shares: list[LayerMeasurement]) -> SensitivityResult:
    """Return ``result`` with the damage of each layer replaced; its savings stay as they were measured."""
    known = {item.key: item for item in result.shown}
    renewed = {
        share.key: replace(known[share.key], changes=share.changes, status=share.status, estimated=False)
        for share in shares
    }
    measurements = tuple(renewed.get(item.key, item) for item in result.shown)
    return replace(result, measurements=measurements, estimates=())
