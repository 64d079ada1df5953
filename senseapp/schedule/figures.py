"""Figures and damage of levels that a person chose, or that a file names."""

from __future__ import annotations

from collections.abc import Mapping

from senseapp.errors import InvalidSchedule
from senseapp.results import Schedule, SensitivityResult
from senseapp.schedule.accounting import Accounting
from senseapp.schedule.choices import Choice
from senseapp.schedule.from_result import CurveSet, curves_of
from senseapp.schedule.limits import fixed_levels
from senseapp.schedule.problem import assemble
from senseapp.spec.limits import Limits


def budget_of(schedule: Schedule, *results: SensitivityResult) -> dict[str, float]:
    """Return what ``schedule`` saves, in the unit of each budget kind, predicted from measured costs.

    Args:
        schedule: any schedule, for example one read from a file.
        results: runs that measured its layers; two for a mixed schedule.

    Raises:
        InvalidSchedule: a layer was not measured with its compression in any of the runs.
    """
    curve_sets = {curve_set.compression: curve_set for curve_set in map(curves_of, results)}
    choices: dict[str, Choice] = {}
    for entry in schedule.entries:
        if entry.compression != "none":
            choice = _choice(entry.layer, entry.level, curve_sets.get(entry.compression), entry.compression)
            earlier = choices.get(entry.layer)
            choices[entry.layer] = choice if earlier is None else earlier.beside(choice)
    first = next(iter(curve_sets.values()))
    return Accounting.of(first.profile, first.curves).figures(choices.values())


def _choice(layer: str, level: float, curve_set: CurveSet | None, compression: str) -> Choice:
    curve = curve_set.curve_of(layer) if curve_set else None
    if curve is None:
        raise InvalidSchedule(f"{layer} was not measured with {compression} in this run, so its savings are unknown.")
    return curve.choice(level)


def manual_schedule(result: SensitivityResult, levels: Mapping[str, float], *, metric: str | None = None) -> Schedule:
    """Return the schedule of levels that a person chose; layers not named are left alone.

    Args:
        result: the run that predicts damage and savings.
        levels: layer name to fraction or bits; 0 leaves the layer alone.
        metric: as for :func:`~senseapp.schedule.methods.make_schedule`.

    Raises:
        InvalidSchedule: a layer has no usable measurement, or a level is out of range.
    """
    curve_set = curves_of(result, metric)
    fixed = fixed_levels(curve_set, Limits(fixed=levels))
    return assemble(
        curve_set,
        Accounting.of(curve_set.profile, curve_set.curves),
        {curve.layer: fixed.get(curve.layer, curve.scale.untouched) for curve in curve_set.curves},
        method="manual",
        locked=fixed.keys(),
    )
