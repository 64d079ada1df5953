"""Damage and savings of one layer over the levels of one compression, cleaned for a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from senseapp.compressions import BudgetKind
from senseapp.schedule.choices import DENSE_BITS, UNTOUCHED, Choice, Part

LEVEL_DIGITS = 9  # levels are written and read back without loss at this precision
_GRID_POINTS = 20
_TIDY_STEPS = (10, 5, 2, 1)
_LOG_FLOOR = 1e-12  # damage below this is no damage; keeps its logarithm finite


def tidy_level(level: float) -> float:
    """Return ``level`` at the precision that files keep."""
    return round(float(level), LEVEL_DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One measured level: its damage, and the weights and MACs it takes away."""

    level: float
    damage: float
    removed_params: float = 0.0
    removed_macs: float = 0.0


def cleaned(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Make damage non-negative and never falling, from the gentlest point to the most aggressive.

    Negative damage is noise and counts as none; a fall is noise too, and the running maximum stands in its place.
    """
    worst = 0.0
    result = []
    for point in points:
        worst = max(worst, point.damage)
        result.append(
            CurvePoint(
                level=point.level,
                damage=worst,
                removed_params=point.removed_params,
                removed_macs=point.removed_macs,
            )
        )
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCurve:
    """What one layer (or coupled group) suffers and saves, by level.

    Attributes:
        layer: its name; for a group, the first member.
        members: all layers that the choice holds for.
        compression: ``sparsity``, ``pruning`` or ``quantization``.
        num_params: weights of all members.
        points: measured levels, from the gentlest to the most aggressive; damage finite, >= 0 and never falling.
        continuous: whether levels between the measured ones can be chosen (not for 2:4 and fp8).
    """

    layer: str
    members: tuple[str, ...]
    compression: str
    num_params: int
    points: tuple[CurvePoint, ...]
    continuous: bool = True

    @property
    def untouched(self) -> float:
        """The level at which nothing is done: 0, or 32 bits."""
        return UNTOUCHED[self.compression]

    @property
    def strongest(self) -> float:
        """The most aggressive level with a finite measurement."""
        return self.points[-1].level

    def grid(self) -> tuple[float, ...]:
        """Return levels to choose from, gentlest first, the untouched one included.

        Whole bits between measured ones; for fractions each gap is cut into 10, 5, 2 or 1 equal steps, so that
        there are about 20 levels in all.
        """
        measured = [point.level for point in self.points]
        if not self.continuous:
            return (self.untouched, *measured)
        if self.compression == "quantization":
            return (self.untouched, *(float(bits) for bits in range(int(measured[0]), int(measured[-1]) - 1, -1)))
        steps = next(steps for steps in _TIDY_STEPS if steps * len(measured) <= _GRID_POINTS or steps == 1)
        knots = [0.0, *measured]
        between = [np.linspace(low, high, steps + 1)[:-1] for low, high in zip(knots, measured, strict=False)]
        return (*(tidy_level(level) for level in np.concatenate(between)), self.strongest)

    def choices(self, levels: Sequence[float]) -> tuple[Choice, ...]:
        """Return the choice of each level; damage and savings between measured levels are interpolated.

        Savings are linear in the level. Damage follows a monotone cubic through zero (fractions), or a straight
        line in its logarithm over bits, since each bit less multiplies the noise power by about 4. Beyond the most
        aggressive measurement damage stays at its last value.
        """
        damages = self._damage(np.asarray(levels, dtype=np.float64)).tolist()
        return tuple(self._choice(level, damage) for level, damage in zip(levels, damages, strict=True))

    def choice(self, level: float) -> Choice:
        """Return the choice of one level; see :meth:`choices`."""
        return self.choices([level])[0]

    def saving(self, level: float, kind: BudgetKind) -> float:
        """Return what ``level`` saves, without the work of predicting its damage."""
        return self._choice(level, 0.0).saving(kind)

    def _choice(self, level: float, damage: float) -> Choice:
        if level == self.untouched:
            return Choice(num_params=self.num_params)
        part = Part(compression=self.compression, level=level, damage=damage)
        if self.compression == "quantization":
            return Choice(num_params=self.num_params, parts=(part,), bits=level)
        removed_params, removed_macs = self._removed(level)
        prunes = self.compression == "pruning"
        return Choice(
            num_params=self.num_params,
            parts=(part,),
            zeros=0.0 if prunes else removed_params,
            removed_params=removed_params if prunes else 0.0,
            removed_macs=removed_macs,
        )

    def _damage(self, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
        levels = np.array([point.level for point in self.points])
        damage = np.array([point.damage for point in self.points])
        if self.compression == "quantization":
            logs = np.log(np.maximum(damage, _LOG_FLOOR))
            between = np.exp(np.interp(wanted, levels[::-1], logs[::-1]))
            between[between <= 2 * _LOG_FLOOR] = 0.0
            return np.where(wanted >= DENSE_BITS, 0.0, between)
        through_zero = _cubic_through_zero(self.points)
        inside: NDArray[np.float64] = np.maximum(through_zero(np.clip(wanted, 0.0, levels[-1])), 0.0)
        return inside

    def _removed(self, level: float) -> tuple[float, float]:
        """Interpolate the weights and MACs removed; beyond the last measurement they go on at the slope from zero."""
        gentler, stronger = CurvePoint(level=0.0, damage=0.0), self.points[0]
        for point in self.points[1:]:
            if level <= stronger.level:
                break
            gentler, stronger = stronger, point
        if level > stronger.level:
            gentler = CurvePoint(level=0.0, damage=0.0)
        share = (level - gentler.level) / (stronger.level - gentler.level)
        return (
            gentler.removed_params + share * (stronger.removed_params - gentler.removed_params),
            gentler.removed_macs + share * (stronger.removed_macs - gentler.removed_macs),
        )


@lru_cache(maxsize=4096)
def _cubic_through_zero(points: tuple[CurvePoint, ...]) -> PchipInterpolator:
    """Fit the damage of fractions; kept, since a slider asks for the same curves again and again."""
    levels = [0.0, *(point.level for point in points)]
    return PchipInterpolator(levels, [0.0, *(point.damage for point in points)])
