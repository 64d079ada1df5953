"""Shell patterns of names, compiled once: ``layer1.*`` and ``*.conv2`` together with literal names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from functools import lru_cache

from senseapp.core.errors import InvalidSpec

MOST_NAMES = 10_000
MOST_PATTERNS = 500
LONGEST_PATTERN = 400
_WILD = re.compile(r"[*?\[]")


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate for names that equal or match one of ``patterns``; case-sensitive.

    Raises:
        InvalidSpec: there are more than 10,000 names or 500 patterns among them, or one of over 400 characters.
    """
    return _compiled(tuple(dict.fromkeys(patterns)))


def part_of_name(wanted: str) -> str:
    """Return the lower-case pattern of names that contain ``wanted``; a pattern is returned as it is.

    >>> part_of_name(" Conv"), part_of_name("layer1.*")
    ('*conv*', 'layer1.*')
    """
    part = wanted.strip().lower()
    return part if "*" in part or "?" in part else f"*{part}*"


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    wild = [pattern for pattern in patterns if _WILD.search(pattern)]
    if len(patterns) > MOST_NAMES or len(wild) > MOST_PATTERNS:
        raise InvalidSpec(
            f"Up to {MOST_NAMES:,} names and {MOST_PATTERNS} patterns with * can be given at once; got "
            f"{len(patterns):,}, {len(wild):,} of them with *. Use fewer, wider patterns."
        )
    if any(len(pattern) > LONGEST_PATTERN for pattern in patterns):
        raise InvalidSpec(f"A name or pattern has up to {LONGEST_PATTERN} characters; one has more. Shorten it.")
    names = frozenset(patterns).difference(wild)
    fits = re.compile("|".join(map(translate, wild))).match if wild else lambda _: None
    return lambda name: name in names or fits(name) is not None
