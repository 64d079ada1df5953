"""How counts and file names are written in the sentences that people read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_LONGEST_NAME = 80
_MOST_LISTED = 4


def printable(name: str) -> str:
    """Return a file name with what cannot be shown (control characters, text direction, bad bytes) replaced.

    >>> printable("holiday" + chr(0x202E) + "gpj.exe")
    'holiday�gpj.exe'
    """
    shown = "".join(letter if letter.isprintable() else "�" for letter in name[: 4 * _LONGEST_NAME])
    return shown if len(shown) <= _LONGEST_NAME else "…" + shown[1 - _LONGEST_NAME :]


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, in the plural where it is not one.

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
