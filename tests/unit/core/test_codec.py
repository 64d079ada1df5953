"""Plain values of records: each kind is read as itself only, as JSON of other programs mixes them up."""

import enum
import math
from dataclasses import dataclass

import pytest

from senseapp.core.codec import from_plain
from senseapp.core.errors import InvalidFile


class Side(enum.StrEnum):
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    share: float = 0.5
    count: int = 1
    locked: bool = False
    title: str = ""
    side: Side = Side.LEFT
    shares: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", True),
        ("share", math.nan),
        ("count", True),
        ("count", 1.5),
        ("count", 10**4000),
        ("locked", "no"),
        ("locked", 1),
        ("title", 3),
        ("side", "right"),
        ("shares", [True]),
        ("shares", "12"),
    ],
)
def test_a_value_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidFile, match=r"^This file is damaged: .+\.$"):
        from_plain({field: value}, Plain, name="file")


def test_values_of_their_kind_are_read() -> None:
    found = from_plain(
        {"share": 3, "count": 3, "locked": True, "title": "a", "side": "left", "shares": [1, "inf", 0.5]}, Plain
    )
    assert found == Plain(share=3.0, count=3, locked=True, title="a", side=Side.LEFT, shares=(1.0, math.inf, 0.5))
    assert type(found.share) is float
