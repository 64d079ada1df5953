"""Which cases of a test ``make test`` runs, where the others would see the same behaviour once more."""

from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = False
"""Whether these are the tests of ``make test-all``; ``tests/conftest.py`` sets it before they are collected."""


def examples(count: int) -> int:
    """Return how many examples hypothesis draws: ``count`` in ``make test-all``, a fifth of it in ``make test``."""
    return count if NIGHTLY else -(-count // 5)


def first_of(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the cases for ``parametrize``, of which ``make test`` runs ``count`` and ``make test-all`` the others.

    A tuple is one case of several arguments; as a single one it comes in ``pytest.param``.
    """
    cases = list(cases)
    return [*cases[:count], *map(seldom, cases[count:])]


def seldom(case: Any) -> Any:
    """Return a case that ``make test-all`` alone runs."""
    if hasattr(case, "marks"):  # of ``pytest.param``
        return pytest.param(*case.values, marks=(*case.marks, pytest.mark.wide), id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.wide)
