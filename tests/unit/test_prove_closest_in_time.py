"""Of the files of a search, the one of least damage that takes no longer than another; weights worth 32 bits."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import cast

import pytest

from senseapp.prove.closest_in_time import closest_in_time
from senseapp.prove.file_times import FileTimes
from senseapp.prove.float_nodes import Mixed
from senseapp.prove.whole_weights import with_whole_weights

SECONDS = {
    "": 1.0,
    "a": 0.9,
    "ab": 0.98,
    "abc": 1.2,
    "de": 0.95,
    "d": 0.97,
    "cde": 1.3,
    "A": 0.9,
    "D": 0.97,
    "DE": 0.95,
}
DAMAGE = {"a": 0.5, "ab": 0.3, "abc": 0.1, "de": 0.2, "d": 0.6}


def write(group: Collection[str], whole: Collection[str]) -> bytes:
    """Return a file whose parts in float are letters, large ones those with weights in 32 bits."""
    return "".join(each.upper() if each in whole else each for each in group).encode() + b" " * 100


def damage_of(content: bytes) -> float:
    name = content.decode().strip()
    return DAMAGE[name.lower()] - (0.01 if name != name.lower() else 0.0)


def closest(holds: Collection[str], **found):
    times = SimpleNamespace(
        seems_within=lambda content, most: SECONDS[content.decode().strip()] <= most,
        is_within=lambda content, _most: content.decode().strip() in holds,
    )
    mixed = Mixed(content=b"", in_float=(), gain={}, **{key: tuple(map(tuple, value)) for key, value in found.items()})
    return closest_in_time(
        mixed,
        cast(FileTimes, times),
        write=write,
        placed=lambda content: content,
        damage_of=damage_of,
        progress=lambda _sentence: None,
    )


def test_the_file_of_least_damage_that_is_quick_enough_is_taken_from_steps_and_ladder():
    group, content = closest({"a", "ab", "de"}, steps=["a", "ab", "abc"], ladder=["cde", "de", "d", ""])
    assert (group, content.strip()) == (("d", "e"), b"de")  # "abc" does less damage, and takes too long
    group, _ = closest({"a", "ab", "de"}, steps=["a", "ab", "abc"], ladder=[])
    assert group == ("a", "b")


def test_a_file_that_a_longer_timing_finds_too_slow_gives_way_to_the_next():
    group, _ = closest({"ab"}, steps=["a", "ab", "abc"], ladder=["cde", "de", "d", ""])
    assert group == ("a", "b")
    assert closest(set(), steps=["a", "ab", "abc"], ladder=["cde", "de", "d", ""]) is None
    assert closest({""}, steps=["abc"], ladder=["cde", ""]) is None  # no parts in float: that is all-int8


@pytest.mark.parametrize(
    ("harms", "chosen"),
    [({"ab": 1.0, "Ab": 0.9}, ("a",)), ({"ab": 1.0, "Ab": 0.96}, ()), ({"ab": 1.0, "Ab": 0.96, "AB": 0.7}, ("a", "b"))],
)
def test_weights_in_32_bits_are_taken_where_they_take_enough_damage_for_their_bytes(harms, chosen):
    """Those of "a" take 5 % of the file, those of "b" 30 %: the former for 5 % of the damage, both for 20 %."""

    def sized(whole: Collection[str]) -> bytes:
        name = write("ab", whole).decode().strip()
        return name.encode() + b" " * (100 + 5 * ("a" in whole) + 30 * ("b" in whole))

    nodes, content, damage = with_whole_weights(
        sized, ("b", "a"), 1.0, lambda content: harms.get(content.decode().strip(), 1.0)
    )
    assert set(nodes) == set(chosen)
    assert damage == harms[content.decode().strip()]
