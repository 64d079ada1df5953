"""The gamma rule: the larger a layer's damage, the lower its level, shifted by a common offset to meet the budget."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.records.measurement import RunResult
from senseapp.solve.curve_set import CurveSet, curves_of
from senseapp.solve.problem import Problem, infeasible

DEFAULT_MAXIMUM = 0.9  # fasterai's default, unless a stronger level was measured


def level_bounds(problem: Problem) -> tuple[float, float]:
    """Return the lowest and highest fraction of the layers that are not fixed."""
    low = problem.limits.min_level or 0.0
    high = problem.limits.max_level
    if high is None:
        high = max(DEFAULT_MAXIMUM, *(curve.strongest for curve in problem.curve_set.curves))
    check_bounds(low, high)
    return low, high


def check_bounds(low: float, high: float) -> None:
    """Raise InvalidSpec unless 0 <= low <= high < 1."""
    if not 0 <= low <= high < 1:
        raise InvalidSpec(
            f"The limits must satisfy 0 % <= minimum <= maximum < 100 %, got {100 * low:g} % and {100 * high:g} %."
        )


def offset_to_budget(problem: Problem, preferred: Mapping[str, float]) -> dict[str, float]:
    """Return the preferred levels, shifted by the least common offset that saves enough, and clipped to the limits."""
    low, high = level_bounds(problem)
    free = [curve for curve in problem.curve_set.curves if curve.layer not in problem.fixed]
    bounds = {curve.layer: problem.limits.bounds_of(curve.members, low=low, high=high) for curve in free}

    def moved(offset: float) -> dict[str, float]:
        levels = dict(problem.fixed)
        for layer, (least, most) in bounds.items():
            levels[layer] = min(most, max(least, preferred[layer] + offset))
        return levels

    slack = 1e-12 * problem.accounting.total(problem.kind)  # rounding must not decide whether a bound is feasible
    required = problem.required
    if (most := problem.saving(moved(1.0))) < required - slack:
        raise infeasible(problem, reachable=most)
    if (least := problem.saving(moved(-1.0))) > required + slack:
        raise infeasible(problem, reachable=least, at_most=False)
    return moved(least_offset(lambda offset: problem.saving(moved(offset)) - required))


def least_offset(spare: Callable[[float], float]) -> float:
    """Return the offset of fractions, in [-1, 1], at which the non-decreasing ``spare`` becomes non-negative."""
    low, high = -1.0, 1.0
    if spare(low) >= 0:
        return low
    for _ in range(50):  # halvings: to float precision
        middle = 0.5 * (low + high)
        low, high = (low, middle) if spare(middle) >= 0 else (middle, high)
    return high


def preferred_levels(deltas: ArrayLike, *, target: float, low: float, high: float, gamma: float) -> NDArray[np.float64]:
    """Return the level of each layer before the shift: ``low + (high − low)(1 − norm(delta))^gamma``.

    ``norm`` maps the smallest damage to 0 and the largest to 1; improvements count as no damage. Layers of equal damage
    all prefer ``target``. Source: fasterai 0.3.2, ``to_layer_targets``.
    """
    damage = np.maximum(np.asarray(deltas, dtype=np.float64), 0.0)
    if np.allclose(damage, damage[0]):
        return np.full_like(damage, target)
    norm = (damage - damage.min()) / np.ptp(damage)
    preferred: NDArray[np.float64] = low + (high - low) * (1.0 - norm) ** gamma
    return preferred


def gamma_levels(
    deltas: ArrayLike, weights: ArrayLike, *, target: float, low: float, high: float, gamma: float = 1.0
) -> NDArray[np.float64]:
    """Return one level per layer, (L,), within [low, high], whose mean, weighted by ``weights``, (L,), is ``target``.

    The preferred levels for the finite damages ``deltas``, (L,), at one common level are shifted by one offset. A
    ``gamma`` of 0 gives all layers one level; larger values spare fragile layers more.

    Raises InvalidSpec for limits or gamma out of range, InfeasibleBudget, with the nearest feasible target, for one
    outside the limits.
    """
    check_bounds(low, high)
    if not 0 <= gamma < float("inf"):
        raise InvalidSpec(f"gamma must be a number from 0 upwards, got {gamma}.")
    if not low <= target <= high:
        nearest = low if target < low else high
        raise InfeasibleBudget(
            f"A target of {100 * target:g} % cannot be met with every layer between {100 * low:g} % and "
            f"{100 * high:g} %; the nearest that can is {100 * nearest:g} %.",
            nearest=nearest,
        )
    preferred = preferred_levels(deltas, target=target, low=low, high=high, gamma=gamma)
    share = np.asarray(weights, dtype=np.float64) / np.sum(weights)

    def levels(offset: float) -> NDArray[np.float64]:
        return np.clip(preferred + offset, low, high)

    return levels(least_offset(lambda offset: float(share @ levels(offset)) - target))


def layer_targets(
    result: RunResult,
    *,
    target: float = 0.5,
    low: float = 0.0,
    high: float = 0.9,
    gamma: float = 1.0,
    metric: str | None = None,
) -> dict[str, float]:
    """Return a fraction per layer, group members included, whose mean weighted by parameters is ``target``.

    Layers without a usable measurement are absent. Damage is that at the measured level nearest to ``target`` (for
    bits, the middle one), in ``metric``, by default KL if it was measured, else the run's own.
    """
    curve_set = curves_of(result, metric)
    deltas = _damages(curve_set, curve_set.description.scale.reference(result.levels, target))
    weights = [curve.num_params for curve in curve_set.curves]
    levels = gamma_levels(deltas, weights, target=target, low=low, high=high, gamma=gamma)
    return {
        member: float(share) for curve, share in zip(curve_set.curves, levels, strict=True) for member in curve.members
    }


def scheduled_levels(problem: Problem) -> dict[str, float]:
    """Return the level of each layer by the gamma rule, shifted to meet the budget."""
    compression, curves, target = problem.curve_set.description, problem.curve_set.curves, problem.budget.target
    if not compression.scale.any_between:
        raise InvalidSpec(
            f"The gamma method sets fractions, not {compression.scale.unit}. For {compression.name} choose the "
            "optimal method."
        )
    if not all(curve.continuous for curve in curves):
        raise InvalidSpec("The gamma method needs levels in between, which 2:4 sparsity does not have.")
    low, high = level_bounds(problem)
    measured = sorted({point.level for curve in curves for point in curve.points})
    preferred = preferred_levels(
        _damages(problem.curve_set, compression.scale.reference(measured, target)),
        target=min(high, max(low, target)),
        low=low,
        high=high,
        gamma=problem.gamma,
    )
    return offset_to_budget(
        problem, {curve.layer: float(level) for curve, level in zip(curves, preferred, strict=True)}
    )


def _damages(curve_set: CurveSet, level: float) -> list[float]:
    return [curve.choice(level).damage for curve in curve_set.curves]
