"""Find a target by measuring schedules, where predictions are not enough."""

from __future__ import annotations

from collections.abc import Callable

from senseapp.errors import InfeasibleBudget
from senseapp.results import Schedule

_CLOSE = 0.002  # of the total: nearer to the target than people can tell
_MOST = 1 - 1e-6  # a budget's fraction lies below 1
_EDGE = 1e-9  # keeps a nearest target, itself rounded, feasible


def with_true_size(
    make: Callable[[float], Schedule], true_fraction: Callable[[Schedule], float], target: float, *, rounds: int = 8
) -> Schedule:
    """Return the gentlest schedule found whose true size meets ``target``, where only applying it tells its size.

    Needed for pruning, whose savings overlap: see :class:`~senseapp.schedule.accounting.Accounting`.

    Args:
        make: returns the schedule for a predicted fraction removed.
        true_fraction: returns the fraction truly removed by a schedule, by applying it.
        target: the fraction that must truly be removed.
        rounds: most schedules tried.

    Raises:
        InfeasibleBudget: no schedule tried removes enough; ``nearest`` is the most that one removed.
    """
    asked, most = target, 0.0
    enough: dict[float, Schedule] = {}
    for _ in range(rounds):
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


def strongest_within(
    make: Callable[[float], Schedule],
    measured_drop: Callable[[Schedule], float],
    allowed_drop: float,
    *,
    gentlest: float,
    strongest: float,
    rounds: int = 6,
) -> Schedule:
    """Return the strongest schedule found whose measured drop is at most ``allowed_drop``, by bisection.

    Args:
        make: returns the schedule for a target.
        measured_drop: applies a schedule and returns its measured metric drop.
        allowed_drop: in the unit of ``measured_drop``.
        gentlest: the target to fall back on (for bits, the larger number).
        strongest: the target not to go beyond.
        rounds: schedules measured between the two.

    Raises:
        InfeasibleBudget: even the gentlest target drops more; ``nearest`` is its drop.
    """
    best = make(gentlest)
    if (drop := measured_drop(best)) > allowed_drop:
        raise InfeasibleBudget(
            f"A drop of at most {allowed_drop:g} cannot be met: the gentlest schedule already drops {drop:.4g}.",
            nearest=drop,
        )
    for _ in range(rounds):
        middle = 0.5 * (gentlest + strongest)
        schedule = make(middle)
        if measured_drop(schedule) <= allowed_drop:
            gentlest, best = middle, schedule
        else:
            strongest = middle
    return best
