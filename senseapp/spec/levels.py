"""Bounds of a compression level and how people write it.

Inside the engine a level is a fraction for sparsity and pruning, and a number of bits for quantization;
people and files say percent and bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from senseapp.errors import InvalidSpec


def check_fractions(levels: Sequence[float], *, what: str) -> None:
    """Require each level to lie strictly between 0 and 1.

    Raises:
        InvalidSpec: a level is 0, 1, outside, or not a number.
    """
    for level in levels:
        if not (math.isfinite(level) and 0.0 < level < 1.0):
            raise InvalidSpec(
                f"A {what} level must be above 0 % and below 100 %, got {100 * level:g} %. "
                "Choose levels such as 25, 50, 75."
            )


def check_bits(levels: Sequence[float]) -> None:
    """Require each level to be a whole number of bits from 2 to 8.

    Raises:
        InvalidSpec: a level is 1 or less, above 8, fractional, or not a number.
    """
    for level in levels:
        if not (math.isfinite(level) and level == int(level) and 2 <= level <= 8):
            raise InvalidSpec(
                f"A quantization level is a whole number of bits from 2 to 8, got {level:g}. "
                "Choose levels such as 8, 4, 3."
            )


def parse_numbers(text: str, *, what: str) -> tuple[float, ...]:
    """Read ``"25,50,75"``.

    Raises:
        InvalidSpec: an entry is not a number, or there is none.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    try:
        numbers = tuple(float(entry) for entry in entries)
    except ValueError as error:
        raise InvalidSpec(f"{what} must be numbers separated by commas, got {text!r}.") from error
    if not numbers:
        raise InvalidSpec(f"{what} must name at least one number, got none.")
    return numbers


def fractions_from_percent(percents: Sequence[float]) -> tuple[float, ...]:
    """Turn percent into fractions, exactly as written (``30`` becomes ``0.3``)."""
    return tuple(percent / 100 for percent in percents)
