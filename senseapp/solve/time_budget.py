"""Schedules under a budget of time: least damage, with times of layers and costs of precision borders."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.core.texts import listed, plural
from senseapp.records.deployment import INT8, INT8_BITS, MILLISECONDS, LayerTimes
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Limits, ResourceBudget, Schedule
from senseapp.solve.curves import LayerCurve
from senseapp.solve.methods import admissible_levels
from senseapp.solve.node_precisions import taken_choices
from senseapp.solve.problem import Problem, assemble, build_problem
from senseapp.solve.trade_off import TradeOffPoint

_POINTS = 15  # of the curve of damage against time


@dataclass(frozen=True, slots=True)
class _Timed:
    """One level of one curve, with its predicted damage and the seconds of all members."""

    curve: LayerCurve
    level: float
    damage: float
    seconds: float


def schedule_within(
    result: RunResult, times: LayerTimes, most_seconds: float, *, limits: Limits | None = None
) -> Schedule:
    """Return the schedule of least damage whose predicted time is at most ``most_seconds``.

    Raises InfeasibleBudget if none is as fast (``nearest`` is the least time, in milliseconds), InvalidSpec if the time
    is not positive or no layer of the run has one.
    """
    if not (math.isfinite(most_seconds) and most_seconds > 0):
        raise InvalidSpec(f"A budget of time is above 0 ms, got {1000 * most_seconds:g}.")
    problem = any_problem(result, limits or Limits())
    curves = problem.curve_set.curves
    choices = _choices(problem, times)
    untouched = predicted_seconds(curves, times, {})
    possible = {(each.curve.layer, each.level) for each in choices}
    levels = {curve.layer: curve.scale.untouched for curve in curves}
    if untouched > most_seconds or not possible.issuperset(levels.items()):
        levels = _solved(curves, choices, times, most_seconds) or {}
    if not levels:
        least = _solved(curves, choices, times, None)
        assert least is not None
        nearest = 1000 * predicted_seconds(curves, times, least)
        raise InfeasibleBudget(
            f"{1000 * most_seconds:.3g} ms cannot be met by {problem.curve_set.compression}: at least "
            f"{nearest:.3g} ms, and {1000 * untouched:.3g} ms as it is ({times.source}).",
            nearest=nearest,
        )
    seconds = predicted_seconds(curves, times, levels)
    schedule = assemble(problem.curve_set, problem.accounting, levels, method="optimal", locked=problem.fixed.keys())
    notes = (*_time_notes(curves, times, seconds), *schedule.notes)
    return replace(schedule, achieved=schedule.achieved | {MILLISECONDS: 1000 * seconds}, notes=notes)


def time_range(result: RunResult, times: LayerTimes) -> tuple[float, float]:
    """Return the least predicted time of any schedule, and the time of the unchanged network, in seconds.

    Raises InvalidSpec if no layer of the run has a time.
    """
    problem = any_problem(result, Limits())
    curves = problem.curve_set.curves
    quickest = _solved(curves, _choices(problem, times), times, None) or {}
    untouched = predicted_seconds(curves, times, {})
    return min(untouched, predicted_seconds(curves, times, quickest)), untouched


def time_trade_off(result: RunResult, times: LayerTimes, *, limits: Limits | None = None) -> tuple[TradeOffPoint, ...]:
    """Return at most :data:`_POINTS` schedules, from the unchanged network to nearly the fastest one."""
    least, untouched = time_range(result, times)
    found = []
    for seconds in np.linspace(untouched, least + (untouched - least) / (2 * _POINTS), _POINTS):
        with suppress(InfeasibleBudget):  # limits exclude the fastest
            schedule = schedule_within(result, times, float(seconds), limits=limits)
            reached = schedule.achieved[MILLISECONDS]
            point = TradeOffPoint(
                kind=MILLISECONDS, target=1000 * float(seconds), damage=schedule.predicted_damage, figure=reached
            )
            found.append(point)
    return tuple(found)


def predicted_seconds(curves: Sequence[LayerCurve], times: LayerTimes, levels: Mapping[str, float]) -> float:
    """Return the time of the network at one level per curve; layers not in ``levels`` are unchanged."""
    chosen = {member: levels.get(curve.layer, curve.scale.untouched) for curve in curves for member in curve.members}
    quantized = {layer for layer, level in chosen.items() if curves[0].description.sets_bits and level <= INT8_BITS}
    return times.whole(chosen, curves[0].scale, int8=quantized)


def saves_no_time(curves: Sequence[LayerCurve], times: LayerTimes) -> tuple[str, ...]:
    """Return the layers with times that are not faster at any of their measured levels."""
    return tuple(
        curve.layer
        for curve in curves
        if (own := [member for member in curve.members if member in times.layers()])
        and all(
            sum(times.seconds(member, point.level, curve.scale) for member in own)
            >= sum(times.seconds(member, curve.scale.untouched, curve.scale) for member in own)
            for point in curve.points
        )
    )


def any_problem(result: RunResult, limits: Limits) -> Problem:
    """Return the problem of a run under a budget that every schedule meets."""
    kind = result.compression.description.budgets[0]
    anything = ResourceBudget(kind=kind, target=2.0 if kind == "bits" else 0.0)
    return build_problem(result, anything, limits, check_budget=False)


def _choices(problem: Problem, times: LayerTimes) -> list[_Timed]:
    curves, timed = problem.curve_set.curves, times.layers()
    if not any(member in timed for curve in curves for member in curve.members):
        raise InvalidSpec(f"No layer that was measured in this run has a time ({times.source}).")
    found = []
    for curve in curves:
        levels = admissible_levels(problem, curve)
        for choice, level in zip(curve.choices(levels), levels, strict=True):
            seconds = sum(times.seconds(member, level, curve.scale) for member in curve.members)
            found.append(_Timed(curve, level, choice.damage, seconds))
    return found


def _solved(
    curves: Sequence[LayerCurve], choices: Sequence[_Timed], times: LayerTimes, most_seconds: float | None
) -> dict[str, float] | None:
    """Return the level of each curve; with ``most_seconds`` None the fastest ones; None if infeasible."""
    scale, quantizes = curves[0].scale, curves[0].description.sets_bits
    measured = {member: curve.layer for curve in curves for member in curve.members}
    others = times.layers() - measured.keys()
    base = times.other_seconds + sum(times.seconds(layer, scale.untouched, scale) for layer in others)
    int8: dict[str, list[int]] = {curve.layer: [] for curve in curves}
    for column, each in enumerate(choices):
        if quantizes and each.level <= INT8_BITS:  # of other compressions nothing computes in int8
            int8[each.curve.layer].append(column)
    taken = taken_choices(
        [each.damage if most_seconds is not None else 0.0 for each in choices],
        [each.seconds for each in choices],
        ends={member: int8[layer] for member, layer in measured.items()},
        borders={
            (each.first, each.second): each.seconds for each in times.conversions if quantizes and each.seconds > 0
        },
        always=INT8,
        most_seconds=math.inf if most_seconds is None else most_seconds - base,
        owners=[each.curve.layer for each in choices],
    )
    return None if taken is None else {choices[each].curve.layer: choices[each].level for each in taken}


def _time_notes(curves: Sequence[LayerCurve], times: LayerTimes, seconds: float) -> tuple[str, ...]:
    untouched = predicted_seconds(curves, times, {})
    notes = [f"Predicted {1000 * seconds:.3g} ms, {1000 * untouched:.3g} ms as it is ({times.source}).", *times.notes]
    if seconds >= untouched:
        notes.append("This schedule saves no time here.")
    if idle := saves_no_time(curves, times):
        notes.append(f"Compressing {plural(len(idle), 'layer')} saves no time here: {listed(idle)}.")
    if missing := [curve.layer for curve in curves if not set(curve.members) & times.layers()]:
        notes.append(f"{plural(len(missing), 'layer')} without a time count as if none were saved: {listed(missing)}.")
    return tuple(notes)
