"""Scales of compression levels: their units, their text form, and interpolation of damage between levels.

The engine counts a level as a fraction (of weights or channels) or as a number of bits; people and files say percent
and bits.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidSchedule, InvalidSpec

DENSE_BITS = 32.0
"""Bits of a weight that was left alone."""
FINER_BITS = tuple(float(bits) for bits in range(9, 17))
"""Bits that weights can be rounded to but harm no layer, so that no run offers them; the notebook takes them."""
# tenths and quarters, and .95, since losses grow fastest near the end
FRACTIONS = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)

LEVEL_DIGITS = 9  # levels are written and read back without loss at this precision
_SHOWN_DIGITS = 10  # takes the binary dust off a percentage, and keeps what people typed
_GRID_POINTS = 20  # choices of a layer for the solver, whose time grows with them
_TIDY_STEPS = (10, 5, 2, 1)  # between two measured levels, so that a grid of tenths gets whole percents
_FLOORED = 1e-9  # of a unit: binary fractions times a number fall short of a whole one by less
_LOG_FLOOR = 1e-12  # damage below this is no damage; keeps its logarithm finite


def whole_units(share: float, num_units: int) -> int:
    """Return floor(``share`` · ``num_units``), where 0.29 of 100, in binary 28.999999999999996, is 29.

    >>> whole_units(0.29, 100)
    29
    """
    return math.floor(share * num_units + _FLOORED)


def parse_numbers(text: str, *, what: str) -> tuple[float, ...]:
    """Read ``"25,50,75"``; raise InvalidSpec where an entry is not a number, or there is none."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    try:
        numbers = tuple(float(entry) for entry in entries)
    except ValueError as error:
        raise InvalidSpec(f"{what} must be numbers separated by commas, got {text!r}.") from error
    if not numbers:
        raise InvalidSpec(f"{what} must name at least one number, got none.")
    return numbers


def tidy_level(level: float) -> float:
    """Return ``level`` at the precision that files keep."""
    return round(float(level), LEVEL_DIGITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelScale:
    """Scale of the levels of one compression: shares of a layer's weights or channels by default.

    Attributes:
        noun: of the compression, for error messages: ``sparsity``.
        axis: title of an axis of levels, with its unit.
        choices: levels offered, weakest first.
        unit: of a level in files; ``suffix`` is that in a sentence.
        per_level: people's units for one engine unit: 100 for percent.
        untouched: the level that leaves a layer as it is.
        usual: the level that most runs are judged at; what is shown first is near it.
        example: levels as a person may type them, in steps of ``step``.
        reached_format: of a level that was truly reached, which may lie between those that can be asked for.
        any_between: whether every number between two levels is a level.
    """

    noun: str
    axis: str
    choices: tuple[float, ...] = FRACTIONS
    default: tuple[float, ...] = (0.25, 0.5, 0.75)

    unit: ClassVar[str] = "percent"
    suffix: ClassVar[str] = "%"
    per_level: ClassVar[float] = 100.0
    untouched: ClassVar[float] = 0.0
    usual: ClassVar[float] = 0.5
    example: ClassVar[str] = "35, 85"
    step: ClassVar[float] = 0.1
    reached_format: ClassVar[str] = ".1f"
    stronger_is_lower: ClassVar[bool] = False
    any_between: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest limit that a layer may be given."""
        return 0.0, 0.99

    @property
    def rule(self) -> str:
        """Which levels there are, to follow "must be"."""
        return "above 0 % and below 100 %"

    def allows(self, level: float) -> bool:
        """Return whether a layer can be compressed to ``level``; the untouched level does not compress."""
        return 0.0 < level < 1.0

    def grid(self, measured: Sequence[float]) -> tuple[float, ...]:
        """Return the levels that a solver may choose, gentlest first, beginning with the untouched one.

        Each gap between measured levels is cut into 10, 5, 2 or 1 equal steps, for about 20 levels in all.
        """
        return _finer(tuple(measured))

    def damage(
        self, measured: Sequence[float], damages: NDArray[np.float64], wanted: Sequence[float]
    ) -> NDArray[np.float64]:
        """Interpolate the damage of layers at the levels ``wanted``, (layers, wanted); constant beyond the last.

        ``damages``, (layers, measured), are those at the levels ``measured``, gentlest first. It is a monotone cubic
        through zero.
        """
        from scipy.interpolate import PchipInterpolator

        inside = np.clip(np.asarray(wanted, dtype=np.float64), 0.0, measured[-1])
        from_zero = np.concatenate([np.zeros((len(damages), 1)), damages], axis=1)
        found: NDArray[np.float64] = np.maximum(PchipInterpolator([0.0, *measured], from_zero, axis=1)(inside), 0.0)
        return found

    def reference(self, levels: Sequence[float], target: float) -> float:
        """Return the one of ``levels`` whose damage tells layers apart best where ``target`` is aimed at."""
        return min(levels, key=lambda level: abs(level - target))

    def parse(self, text: str, *, what: str) -> tuple[float, ...]:
        """Read percents; levels that are all below 1 % are most likely meant as shares, and are refused."""
        numbers = parse_numbers(text, what=what)
        if all(0 < number < 1 for number in numbers):
            meant = ",".join(f"{100 * number:g}" for number in numbers)
            raise InvalidSpec(f"{what} are percents, and {text!r} would be below 1 %. For these shares write {meant}.")
        return tuple(self.from_shown(number) for number in numbers)

    def check(self, levels: Iterable[float]) -> None:
        """Raise InvalidSpec, with the rule and examples, unless every level can be measured."""
        for level in levels:
            if not self.allows(level):
                raise InvalidSpec(
                    f"A {self.noun} level must be {self.rule}, got {self.text(level)}. "
                    f"Choose levels such as {', '.join(f'{self.shown(each):g}' for each in self.default)}."
                )

    def fixed(self, level: float, layer: str) -> float:
        """Return the level of a layer that a person fixed, 0 or the untouched level for none; else InvalidSchedule."""
        if level in (0, self.untouched):
            return self.untouched
        if not self.allows(level):
            raise InvalidSchedule(f"The level of {layer} must be {self.rule}, or 0 for none; got {self.text(level)}.")
        return tidy_level(level)

    def strength(self, level: float) -> float:
        """Return a number that grows with the strength of compression."""
        return -level if self.stronger_is_lower else level

    def sorted(self, levels: Iterable[float]) -> list[float]:
        """Return ``levels``, gentlest first."""
        return sorted(levels, key=self.strength)

    def shown(self, level: float) -> float:
        """Return ``level`` in display units, without binary rounding (0.07 becomes 7.0)."""
        return round(self.per_level * level, _SHOWN_DIGITS)

    def from_shown(self, number: float) -> float:
        """Return the level that ``number`` in people's unit means; the exact inverse of :meth:`shown`."""
        return round(number / self.per_level, _SHOWN_DIGITS + 2)

    def text(self, level: float) -> str:
        """Return a level in display units: ``50 %``, ``4 bits``."""
        return f"{self.shown(level):g} {self.suffix}"

    def texts(self, levels: Iterable[float]) -> str:
        """Return several levels in one phrase: ``25, 50, 75 %``, ``8, 4 bits``."""
        return ", ".join(f"{self.shown(level):g}" for level in self.sorted(levels)) + f" {self.suffix}"

    def reached_text(self, level: float) -> str:
        """Return a level that was truly reached: ``12.5 %``, ``4 bits``."""
        return f"{self.shown(level):{self.reached_format}} {self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BitScale(LevelScale):
    """Levels are whole numbers of bits kept of each weight, between the fewest and the most that are offered."""

    choices: tuple[float, ...] = (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
    default: tuple[float, ...] = (8.0, 4.0, 2.0)

    unit: ClassVar[str] = "bits"
    suffix: ClassVar[str] = "bits"
    per_level: ClassVar[float] = 1.0
    untouched: ClassVar[float] = DENSE_BITS
    usual: ClassVar[float] = 4.0
    example: ClassVar[str] = "6, 5"
    step: ClassVar[float] = 1.0
    reached_format: ClassVar[str] = "g"
    stronger_is_lower: ClassVar[bool] = True
    any_between: ClassVar[bool] = False

    @property
    def bounds(self) -> tuple[float, float]:
        """From the fewest bits to those of a layer left alone."""
        return min(self.choices), self.untouched

    @property
    def rule(self) -> str:
        """Which levels there are, to follow "must be"."""
        return f"a whole number of bits from {min(self.choices):g} to {max(self.choices):g}"

    def parse(self, text: str, *, what: str) -> tuple[float, ...]:
        """Read bits: ``8,4``."""
        return tuple(self.from_shown(number) for number in parse_numbers(text, what=what))

    def allows(self, level: float) -> bool:
        """Return whether ``level`` is a whole number between the fewest and the most bits."""
        return level % 1 == 0 and min(self.choices) <= level <= max(self.choices)

    def grid(self, measured: Sequence[float]) -> tuple[float, ...]:
        """Return whole bits from the gentlest measured to the strongest."""
        return (self.untouched, *(float(bits) for bits in range(int(measured[0]), int(measured[-1]) - 1, -1)))

    def damage(
        self, measured: Sequence[float], damages: NDArray[np.float64], wanted: Sequence[float]
    ) -> NDArray[np.float64]:
        """Follow straight lines in the logarithm, since each bit less multiplies the noise power by about 4."""
        bits, levels = np.asarray(measured[::-1], dtype=np.float64), np.asarray(wanted, dtype=np.float64)
        logarithms = np.log(np.maximum(damages[:, ::-1], _LOG_FLOOR))
        between = np.exp([np.interp(levels, bits, own) for own in logarithms])
        between[between <= 2 * _LOG_FLOOR] = 0.0
        return np.where(levels >= self.untouched, 0.0, between)

    def reference(self, levels: Sequence[float], target: float) -> float:
        """Return the level in the middle: a target in fractions says nothing about bits."""
        return levels[(len(levels) - 1) // 2]


@lru_cache(maxsize=256)
def _finer(measured: tuple[float, ...]) -> tuple[float, ...]:
    """Return the grid of fractions; kept, since the layers of a run were measured at the same levels."""
    steps = next(steps for steps in _TIDY_STEPS if steps * len(measured) <= _GRID_POINTS or steps == 1)
    between = np.linspace([LevelScale.untouched, *measured[:-1]], measured, steps, endpoint=False, axis=1)
    return (*map(tidy_level, between.ravel().tolist()), measured[-1])
