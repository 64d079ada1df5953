"""Patterns of names: as the standard library's, compiled once, and not endlessly many."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import matcher, part_of_name

NAMES = st.text(alphabet="ab.1*?[]-!", max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(patterns=st.lists(NAMES, max_size=5), names=st.lists(NAMES, max_size=5))
def test_names_fit_as_they_do_one_by_one(patterns: list[str], names: list[str]) -> None:
    fits = matcher(patterns)
    for name in names:
        assert fits(name) == any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("number", [200_000, 10_001])
def test_too_many_names_are_refused(number: int) -> None:
    with pytest.raises(InvalidSpec, match="Up to 10,000 names and 500 patterns"):
        matcher(f"layer{index}" for index in range(number))


def test_too_many_or_too_long_patterns_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"got 501, 501 of them with \*"):
        matcher(f"{index}*" for index in range(501))
    with pytest.raises(InvalidSpec, match="up to 400 characters"):
        matcher(["a" * 401])
    assert matcher(["*a"] * 200_000)("ba")  # one pattern, many times


def test_what_somebody_types_is_a_part_of_a_name() -> None:
    assert matcher([part_of_name(" Conv2 ")])("layer1.0.conv2")
    assert not matcher([part_of_name("conv*")])("layer1.0.conv2")
    assert matcher([part_of_name("")])("anything")
