"""The search for nodes in float on made-up networks, whose damage and time are sums over nodes."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from senseapp.prove.float_nodes import mixed
from senseapp.runtimes.base import Int8Node, Quantizer

NODES = tuple("abcdefgh")


class Written(Quantizer):
    """A file is the names of its nodes in float, and dots for bytes: 100, and ``of_each`` for each in float."""

    def __init__(self, of_each: int = 1) -> None:
        self._of_each = of_each

    def write(self, *, but: Collection[str] = ()) -> bytes:
        return "".join(sorted(but)).ljust(100 + self._of_each * len(set(but)), ".").encode()

    def nodes(self, content: bytes) -> list[Int8Node]:
        return [Int8Node(name=name) for name in NODES if name not in content.decode()]


def harm_of(**harms: float):
    """Return the damage of a file: that of every node in int8, and 1 that no node can undo."""
    return lambda content: 1.0 + sum(harms.get(name, 0.0) for name in NODES if name not in content.decode())


def seconds_of(nodes: Collection[str]) -> float:
    return 1 + 0.1 * len(set(nodes))


def in_float(content: bytes) -> str:
    return content.decode().rstrip(".")


def found(damage, *, most: float, of_each: int = 1, **parts):
    usual = {"screen": damage, "damage_of": damage, "seconds_of": seconds_of, "progress": lambda _sentence: None}
    quick = {"is_quick_enough": lambda content: seconds_of(in_float(content)) <= most}
    return mixed(Written(of_each), **(usual | quick | parts))


SMALL = dict.fromkeys(NODES, 0.001) | {"c": 1.0}
"""Seven gains of 0.1 %, too small to be taken one by one."""


@pytest.mark.parametrize(("most", "count"), [(1.35, 3), (1.55, 5), (1.05, 0)])
def test_the_rest_of_the_time_is_used_for_small_gains_together(most, count):
    assert len(found(harm_of(**SMALL), most=most, uses_time=True).in_float) == count
    assert len(found(harm_of(**SMALL), most=most).in_float) == (1 if count else 0)


def test_small_gains_leave_the_file_small():
    result = found(harm_of(**SMALL), most=9.0, of_each=20, uses_time=True)
    assert len(result.in_float) == 2  # each takes a fifth of the bytes of all-int8, and half as many more may be used
    assert "c" in result.in_float


def test_the_best_of_the_small_gains_come_first():
    harms = {name: 0.0001 * (1 + place) for place, name in enumerate(NODES)} | {"c": 1.0}
    assert set(found(harm_of(**harms), most=1.35, uses_time=True).in_float) == {"c", "g", "h"}


def test_time_is_not_used_where_nothing_is_gained():
    def damage(content: bytes) -> float:
        return 1.0 if "c" not in content.decode() else 0.1 + 0.01 * len(in_float(content))

    assert found(damage, most=1.8, uses_time=True).in_float == ("c",)


def test_time_is_not_used_where_the_file_is_good_enough():
    result = found(harm_of(**SMALL), most=1.8, uses_time=True, is_enough=lambda _content, damage: damage < 1.1)
    assert result.in_float == ("c",)


def test_a_file_that_a_second_timing_finds_too_slow_gives_back_what_gains_least_for_its_time():
    harms = dict.fromkeys(NODES, 0.0) | {"a": 1.0, "b": 0.5, "c": 0.2}
    result = found(harm_of(**harms), most=1.45, holds_time=lambda content: len(in_float(content)) <= 2)
    assert set(result.in_float) == {"a", "b"}
    assert result.in_time
    assert in_float(result.content) == "ab"


def test_a_file_that_never_holds_its_time_is_told():
    harms = dict.fromkeys(NODES, 1.0)
    result = found(harm_of(**harms), most=1.75, holds_time=lambda _content: False)
    assert not result.in_time
    assert len(result.in_float) == 1  # seven nodes, six given back


def test_all_in_int8_takes_no_longer_than_itself():
    result = found(harm_of(**SMALL), most=1.05, holds_time=lambda _content: False)
    assert result.in_float == ()
    assert result.in_time
