"""The check that every number of a module is derived or has its reason beside it."""

from __future__ import annotations

import pytest

from scripts.constants import unexplained


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 3\n",
        "_FIRST, _LAST = 1, -2\n",
        "SHARE: float = 1 / 3\n",
        "BYTES = 4 * MB\n",
        "MANY = (\n    1,\n    2,\n)\n",
        "SIZES = {'small': 1, 'large': 2**20}\n",
        "PLACES = frozenset({1, 2})\n",
        "LIMIT = 3  # noqa: N806\n",
        '# of the module\n\nLIMIT = 3\nOTHER = "text"\n',
    ],
)
def test_a_number_without_a_reason_is_found(source: str) -> None:
    assert len(list(unexplained(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 3  # why\n",
        "# why\nLIMIT = 3\n",
        'LIMIT = 3\n"""Why."""\n',
        "MANY = (\n    1,  # why\n    2,\n)\n",
        "HALF = LIMIT // 2\n",
        "SIZES = {'small': LIMIT}\n",
        "NAME, IS_SET = 'text', True\n",
        "LIMITS = Limits(most=3)\n",
        "limit = 3\n",
        "def f():\n    LIMIT = 3\n",
    ],
)
def test_a_reason_a_derivation_and_what_is_no_number_are_left_alone(source: str) -> None:
    assert not list(unexplained(source))


def test_the_line_and_all_names_are_told() -> None:
    assert list(unexplained("import math\n\nFIRST, LAST = 1, 2\n")) == [(3, "FIRST, LAST")]
