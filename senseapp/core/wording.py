"""Counts and file names in sentences for users."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

_LONGEST_NAME = 80
_MOST_LISTED = 4


def printable(name: str) -> str:
    """Return a file name with unprintable parts (control characters, text direction, bad bytes) replaced.

    >>> printable("holiday" + chr(0x202E) + "gpj.exe")
    'holiday�gpj.exe'
    """
    shown = "".join(letter if letter.isprintable() else "�" for letter in name[: 4 * _LONGEST_NAME])
    return shown if len(shown) <= _LONGEST_NAME else "…" + shown[1 - _LONGEST_NAME :]


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, in the plural unless it is one.

    >>> plural(1, "picture"), plural(2300, "picture"), plural(2, "class", "classes")
    ('1 picture', '2,300 pictures', '2 classes')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def listed(names: Iterable[str]) -> str:
    """Return the first few names, separated by commas.

    >>> listed("abcdef")
    'a, b, c, d, …'
    """
    first = list(islice(names, _MOST_LISTED + 1))
    shown = [printable(name) for name in first[:_MOST_LISTED]]
    return ", ".join(shown + ["…"] * (len(first) > _MOST_LISTED))


def three_digits(value: float) -> str:
    """Return ``value`` with three significant digits and no exponent: ``1.82``, ``44.7``, ``512``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def bytes_size(number: float) -> str:
    """Return a size in decimal units.

    >>> bytes_size(311_089), bytes_size(44_700_000), bytes_size(12)
    ('311 kB', '44.7 MB', '12 bytes')
    """
    for step, prefix in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= step:
            return f"{three_digits(number / step)} {prefix}"
    return f"{number:.0f} bytes"
