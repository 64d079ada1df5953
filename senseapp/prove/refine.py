"""Solve a schedule again where its layers together lose more than alone, and keep the best by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from senseapp.core.errors import SenseError
from senseapp.metrics import METRICS, MetricChange
from senseapp.prove.conditional import ConditionalSensitivity
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.prove.strongest import couplings_of
from senseapp.records.measurement import LayerMeasurement, RunResult, change_in
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Adapting, Limits, ResourceBudget, Schedule
from senseapp.solve.methods import make_schedule
from senseapp.solve.problem import manual_schedule
from senseapp.solve.trade_off import true_figures, truly_sized

_NEGLIGIBLE = 0.002  # nats, or 0.2 points: another schedule could win nothing that matters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A schedule and its damage on the curves' images, in the better form of repaired and not."""

    schedule: Schedule
    damage: MetricChange
    repaired: bool

    @property
    def alone(self) -> float:
        """What its layers lose alone, in sum."""
        return sum(entry.predicted_damage for entry in self.schedule.entries)

    @property
    def deserves_a_round(self) -> bool:
        """Whether its layers lose more together than alone, and enough to matter."""
        return self.alone < self.damage.ci_low and self.damage.delta > _NEGLIGIBLE


def refine(
    evaluator: ScheduleEvaluator, schedule: Schedule, *, rounds: int, repair: bool, adapting: Adapting = "off"
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Return the best schedule found in at most ``rounds`` rounds, how many were made, and sentences on them.

    A round measures, for each layer and level, the damage of the whole compressed model with only that layer changed,
    less its damage with that layer untouched: the layer's own share around this schedule. The schedule solved from
    these shares takes over if it does less damage on the curves' images, in the better form of repaired and not where
    repair is asked for, and with adapted weights unless ``adapting`` is off; shares are measured with repair where the
    schedule is better with it. There is no round where the damage is no more than that of the layers alone, or too
    little to be worth one.

    Rounds start around the schedule that is asked for, or around that for plain sums of what layers lose alone,
    whichever does less damage, and where that finds nothing around the other. Only optimal schedules are solved again.
    """
    kinds = {entry.compression for entry in schedule.entries} - {"none"}
    solvable = schedule.method == "optimal" and schedule.budget is not None
    if rounds < 2 or not solvable or kinds != {evaluator.result.compression.kind}:
        return schedule, 1, ()
    asked = _tried(evaluator, schedule, repair, adapting)
    if asked is None:
        return schedule, 1, ()
    starts = [asked]
    if asked.damage.delta > _NEGLIGIBLE and (sums := _solved_by_sums(evaluator, schedule)) is not None:
        starts += filter(None, [_tried(evaluator, sums, repair, adapting)])
    starts.sort(key=lambda each: each.damage.delta)
    first = best = starts[0]
    used = 1
    for start in starts:
        found, used = _better_around(evaluator, start, used, rounds, repair, adapting)
        if found.damage.delta < best.damage.delta:
            best = found
            break
    notes = () if first is asked else (_sums_sentence(asked, first),)
    if used > 1:
        notes = (*notes, _sentence(first, best, used))
    return best.schedule, used, notes


def _better_around(
    evaluator: ScheduleEvaluator, start: _Tried, used: int, rounds: int, repair: bool, adapting: Adapting
) -> tuple[_Tried, int]:
    """Return what rounds around ``start`` lead to, as long as each does less damage, and how many there were then."""
    best = start
    while used < rounds and best.deserves_a_round:
        evaluator.progress(f"Round {used + 1} of at most {rounds}: measuring the layers around the compressed model")
        again = _solved_again(evaluator, best)
        if again is None:
            break
        used += 1
        found = _tried(evaluator, again, repair, adapting)
        if found is None or not found.damage.delta < best.damage.delta:
            break
        best = found
    return best, used


def _solved_by_sums(evaluator: ScheduleEvaluator, schedule: Schedule) -> Schedule | None:
    """Return the schedule for damages that add up; None where it is ``schedule``, or there is none."""
    result = evaluator.result
    if result.recorded is None or result.recorded.metric != schedule.metric:
        return None
    try:
        sums = _solved(replace(result, recorded=None), schedule, couplings_of(evaluator.dense.model, result))
        if sums.entries == schedule.entries:
            return None
        levels = {entry.layer: entry.level for entry in sums.entries}
        predicted = manual_schedule(result, levels, metric=schedule.metric).predicted_damage
    except SenseError:  # a schedule of true size need not be found from both
        return None
    return replace(sums, predicted_damage=predicted)


def _sums_sentence(asked: _Tried, sums: _Tried) -> str:
    text = METRICS[asked.damage.metric].change_text
    return (
        f"On the images of the curves, the schedule for what layers are predicted to do together loses "
        f"{text(asked.damage.delta)}, that for the sum of what they lose alone {text(sums.damage.delta)}: the latter "
        "was taken."
    )


def _sentence(first: _Tried, best: _Tried, used: int) -> str:
    text = METRICS[first.damage.metric].change_text
    start = (
        f"The layers lose {text(first.alone)} alone, in sum, and {text(first.damage.delta)} together, so they were "
        f"measured again around the compressed model ({used} rounds); "
    )
    if best is first:
        return start + "no better schedule was found."
    return start + f"the schedule solved from that loses {text(best.damage.delta)} on the same images."


def _tried(evaluator: ScheduleEvaluator, schedule: Schedule, repair: bool, adapting: Adapting) -> _Tried | None:
    curves, applied = evaluator.images.curves, evaluator.reconstruction.apply(schedule)
    found = measured(evaluator, applied, schedule.metric, repair=repair, images=curves, adapting=adapting)
    damage = change_in(found.best, schedule.metric)
    if damage is None:
        return None
    return _Tried(schedule=schedule, damage=damage, repaired=found.delivered != "compressed")


def _solved_again(evaluator: ScheduleEvaluator, tried: _Tried) -> Schedule | None:
    schedule = tried.schedule
    conditional = ConditionalSensitivity.open(evaluator, schedule, repair=tried.repaired)
    if conditional is None:
        return None
    shares = list(conditional.shares())
    try:
        # Shares measured around a schedule need not add up to its damage; scaled, they do.
        total = manual_schedule(_with_shares(evaluator.result, shares), conditional.levels, metric=schedule.metric)
        factor = tried.damage.delta / total.predicted_damage if total.predicted_damage > 0 else 1.0
        return _solved(_with_shares(evaluator.result, shares, factor), schedule, conditional.couplings)
    except SenseError:  # what was measured around a broken model may allow no schedule: the one asked for stays
        return None


def _solved(result: RunResult, schedule: Schedule, couplings: Sequence[CoupledGroup]) -> Schedule:
    """Return the optimal schedule for ``result`` that costs what ``schedule`` does; truly so, where channels go."""
    asked, locked = schedule.budget, {entry.layer: entry.level for entry in schedule.entries if entry.locked}
    assert asked is not None

    def make(target: float) -> Schedule:
        budget = replace(asked, target=target)
        return make_schedule(result, budget=budget, metric=schedule.metric, limits=Limits(fixed=locked))

    if not couplings:
        return make(asked.target)
    true = true_figures(schedule, result.profile, couplings)[asked.kind]
    sized = truly_sized(make, result.profile, couplings, ResourceBudget(kind=asked.kind, target=true))
    return replace(sized, budget=asked)


def _with_shares(result: RunResult, shares: Sequence[LayerMeasurement], factor: float = 1.0) -> RunResult:
    """Return ``result`` with the damage of each layer replaced; its savings stay as they were measured."""
    known = {item.key: item for item in result.shown}
    for share in shares:
        changes = tuple(replace(change, delta=factor * change.delta) for change in share.changes)
        known[share.key] = replace(known[share.key], changes=changes, status=share.status, estimated=False)
    measurements = tuple(known[item.key] for item in result.shown)
    return replace(
        result, measurements=measurements, estimates=(), recorded=None
    )  # shares hold what layers do together
