"""The search for nodes in float on made-up networks, whose damage and time are sums over nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pytest

from senseapp.prove.float_nodes import mixed
from senseapp.runtimes.quantizers import Int8Node, Quantizer
from senseapp.solve.node_precisions import NodeTimes

NODES = tuple("abcdefgh")


class Written(Quantizer):
    """A file is the names of its nodes in float; ``weighted`` nodes have weights, each is read by the next."""

    def __init__(self, weighted: str = "") -> None:
        self._weighted = weighted

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        return "".join(sorted({*but, *weights_only})).encode()

    def nodes(self, content: bytes) -> list[Int8Node]:
        readers = dict(zip(NODES, (*NODES[1:], ""), strict=True)) if self._weighted else {}
        return [
            Int8Node(name=name, has_weights=name in self._weighted, readers=tuple(filter(None, [readers.get(name)])))
            for name in NODES
            if name not in content.decode()
        ]


def harm_of(**harms: float):
    """Return the damage of a file: that of every node in int8, and 1 that no node can undo."""
    return lambda content: 1.0 + sum(harms.get(name, 0.0) for name in NODES if name not in content.decode())


SECONDS = NodeTimes(in_int8=dict.fromkeys(NODES, 0.0), in_float=dict.fromkeys(NODES, 0.1), borders={}, other=1.0)


def in_float(content: bytes) -> str:
    return content.decode()


def found(damage, *, most: float, weighted: str = "", **parts):
    seconds = parts.pop("seconds_of", SECONDS)
    usual = {"screen": damage, "damage_of": damage, "progress": lambda _sentence: None}
    timed = {"seconds_of": seconds, "time_of": lambda content: seconds(in_float(content)) / most}
    return mixed(Written(weighted), **(usual | timed | parts))


SMALL = dict.fromkeys(NODES, 0.001) | {"c": 1.0}
"""Seven gains of 0.1 %, too small to be taken one by one."""


@pytest.mark.parametrize(("most", "count"), [(1.35, 3), (1.55, 5), (1.05, 0)])
def test_the_rest_of_the_time_is_used_for_small_gains_together(most, count):
    assert len(found(harm_of(**SMALL), most=most, uses_time=True).in_float) == count
    assert len(found(harm_of(**SMALL), most=most).in_float) == (1 if count else 0)


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


def test_a_group_that_gains_goes_to_float_in_one_step():
    """Only all four without weights together gain, so no node alone would be chosen."""

    def damage(content: bytes) -> float:
        return 0.5 if set("aceg") <= set(in_float(content)) else 1.0

    result = found(damage, most=1.45, weighted="bdfh")
    assert set(result.in_float) == set("aceg")


def test_what_stands_behind_the_last_weights_is_a_group():
    def damage(content: bytes) -> float:
        return 0.5 if set("fgh") <= set(in_float(content)) else 1.0

    assert set(found(damage, most=1.35, weighted="abcde").in_float) == set("fgh")
    with_weights = found(lambda content: 1.0 - 0.5 * (set("efgh") <= set(in_float(content))), most=1.45, weighted="e")
    assert set(with_weights.in_float) == set("efgh")


def test_where_float_is_quicker_nearly_all_goes_to_float():
    """A node in float saves time, but for the borders between float and int8: as without fast int8 arithmetic."""
    faster = replace(
        SECONDS, in_float=dict.fromkeys(NODES, -0.1), borders=dict.fromkeys(pairwise(NODES), 0.3), other=2.0
    )
    result = found(harm_of(**dict.fromkeys(NODES, 0.0001)), most=1.9, uses_time=True, seconds_of=faster)
    assert len(result.in_float) == 7


def test_of_nodes_that_use_the_time_those_are_taken_that_do_most_harm_alone():
    """Images that choose see no gain of "g" and "h" beside the others: it is too small for them."""
    harms = dict.fromkeys(NODES, 0.01) | {"c": 1.0, "g": 0.04, "h": 0.04}

    def blurred(content: bytes) -> float:
        return round(harm_of(**harms)(content), 1)

    result = found(blurred, most=1.35, uses_time=True, screen=harm_of(**harms))
    assert set(result.in_float) == set("cgh")


def test_a_search_of_a_large_graph_ends_in_time_and_says_so():
    now = 0.0

    def slow(content: bytes) -> float:
        nonlocal now
        now += 100.0
        return harm_of(**SMALL)(content)

    result = found(slow, most=9.0, clock=lambda: now)
    assert now <= 2000
    assert any("neighbours were measured together" in note for note in result.notes)
    assert any("ended after 15 minutes" in note for note in result.notes)


@pytest.mark.parametrize("budget", [0.0, 350.0, 1500.0])
def test_a_search_takes_little_more_than_its_seconds_and_ends_with_the_best_so_far(budget: float):
    now, seen = 0.0, []

    def slow(content: bytes) -> float:
        nonlocal now
        now += 100.0
        seen.append(content)
        return harm_of(**SMALL)(content)

    result = found(slow, most=9.0, seconds=budget, clock=lambda: now)
    assert now <= budget + 300.0
    assert ("c" in result.in_float) is (budget > 0)
    assert harm_of(**SMALL)(result.content) <= harm_of(**SMALL)(seen[0])
    assert any("no time to look" in note or "measured together" in note for note in result.notes)
