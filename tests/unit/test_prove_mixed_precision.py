"""The search for nodes in float on made-up networks, whose damage and time are sums over nodes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from senseapp.prove.float_nodes import mixed
from senseapp.prove.float_screening import damages_alone
from senseapp.runtimes.quantizers import Quantizer
from senseapp.solve.node_precisions import NodeTimes

NODES = tuple("abcdefgh")


class Written(Quantizer):
    """A file is the names of its nodes in float."""

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        return "".join(sorted({*but, *weights_only})).encode()

    def nodes(self, content: bytes) -> list[str]:
        return [name for name in NODES if name not in content.decode()]


def harm_of(**harms: float):
    """Return the damage of a file: that of every node in int8, and 1 that no node can undo."""
    return lambda content: 1.0 + sum(harms.get(name, 0.0) for name in NODES if name not in content.decode())


SECONDS = NodeTimes(in_int8=dict.fromkeys(NODES, 0.0), in_float=dict.fromkeys(NODES, 0.1), borders={}, other=1.0)


def in_float(content: bytes) -> str:
    return content.decode()


def found(damage, *, most: float, **parts):
    seconds = parts.pop("seconds_of", SECONDS)
    usual = {"screen": damage, "damage_of": damage, "progress": lambda _sentence: None}
    timed = {"seconds_of": seconds, "time_of": lambda content: seconds(in_float(content)) / most}
    return mixed(Written(), **(usual | timed | parts))


SMALL = dict.fromkeys(NODES, 0.001) | {"c": 1.0}
"""Seven gains of 0.1 %, too small to be taken one by one."""


@pytest.mark.parametrize(("most", "count"), [(1.35, 3), (1.55, 5), (1.05, 0)])
def test_the_rest_of_the_time_is_used_for_small_gains_together(most, count):
    result = found(harm_of(**SMALL), most=most)
    assert len(result.in_float) == count
    assert not count or "c" in result.in_float


def test_nodes_of_groups_that_do_more_harm_come_first():
    harms = {name: 0.0001 * (1 + place) for place, name in enumerate(NODES)} | {"c": 1.0}
    result = found(harm_of(**harms), most=1.35)
    assert "c" in result.in_float
    assert set(result.in_float) <= set("cefgh")


def test_time_is_not_used_where_nothing_is_gained():
    def damage(content: bytes) -> float:
        return 1.0 if "c" not in content.decode() else 0.1 + 0.01 * len(in_float(content))

    assert found(damage, most=1.8).in_float == ("c",)


def test_time_is_not_used_where_the_file_is_good_enough():
    result = found(harm_of(**SMALL), most=1.8, is_enough=lambda _content, damage: damage < 1.1)
    assert result.in_float == ("c",)


def test_no_more_nodes_are_in_float_than_it_takes():
    harms = dict.fromkeys(NODES, 0.1) | {"a": 1.0, "b": 0.5, "c": 0.2}
    for enough, expected in ((1.75, "ab"), (1.55, "abc")):
        result = found(harm_of(**harms), most=1.75, is_enough=lambda _content, damage, most=enough: damage <= most)
        assert set(result.in_float) == set(expected)


def test_a_file_that_a_second_timing_finds_too_slow_gives_way_to_one_with_fewer_nodes():
    harms = dict.fromkeys(NODES, 0.0) | {"a": 1.0, "b": 0.5, "c": 0.2}
    result = found(harm_of(**harms), most=1.45, holds_time=lambda content: len(in_float(content)) <= 2)
    assert set(result.in_float) == {"a", "b"}
    assert in_float(result.content) == "ab"


def test_where_no_file_holds_its_time_all_is_in_int8_and_a_note_says_so():
    result = found(harm_of(**dict.fromkeys(NODES, 1.0)), most=1.75, holds_time=lambda _content: False)
    assert result.in_float == ()
    assert any("keep to the time" in note for note in result.notes)


def test_all_in_int8_takes_no_longer_than_itself():
    result = found(harm_of(**SMALL), most=1.05, holds_time=lambda _content: False)
    assert result.in_float == ()


def test_nodes_that_gain_together_only_go_to_float_together():
    """Only all four together gain, so no node beside all others in int8 would be chosen."""
    for group in ("aceg", "fgh", "efgh"):
        result = found(lambda content, group=group: 1.0 - 0.5 * (set(group) <= set(in_float(content))), most=1.45)
        assert set(result.in_float) >= set(group)


def test_where_float_is_quicker_nearly_all_goes_to_float():
    """A node in float saves time, but for the borders between float and int8: as without fast int8 arithmetic."""
    faster = replace(
        SECONDS, in_float=dict.fromkeys(NODES, -0.1), borders=dict.fromkeys(pairwise(NODES), 0.3), other=2.0
    )
    result = found(harm_of(**dict.fromkeys(NODES, 0.0001)), most=1.9, seconds_of=faster)
    assert len(result.in_float) == 7


def test_of_nodes_that_use_the_time_those_are_taken_that_do_most_harm_alone():
    """Images that choose see no gain of "g" and "h" beside the others: it is too small for them."""
    harms = dict.fromkeys(NODES, 0.01) | {"c": 1.0, "g": 0.04, "h": 0.04}

    def blurred(content: bytes) -> float:
        return round(harm_of(**harms)(content), 1)

    result = found(blurred, most=1.35, screen=harm_of(**harms))
    assert set(result.in_float) == set("cgh")


@pytest.mark.parametrize("budget", [0.0, 350.0, 5000.0])
def test_a_search_that_is_ended_by_its_time_says_so(budget: float):
    now = 0.0

    def slow(content: bytes) -> float:
        nonlocal now
        now += 100.0
        return harm_of(**SMALL)(content)

    result = found(slow, most=9.0, seconds=budget, clock=lambda: now)
    assert any("was ended after" in note for note in result.notes) == (budget < 5000)
    assert now <= 2500
    assert harm_of(**SMALL)(result.content) <= harm_of(**SMALL)(b"")


@pytest.mark.parametrize("count", [2, 40, 300])
@pytest.mark.parametrize("harmful", [1, 8])
def test_the_harmful_ones_of_hundreds_of_nodes_are_found_with_few_files(count: int, harmful: int):
    """Plain search over all nodes would take as many files as there are nodes."""
    names = [f"n{place}" for place in range(count)]
    generator = np.random.default_rng(count)
    harms = dict.fromkeys(names, 1e-5) | {
        name: 1.0 + place for place, name in enumerate(generator.permutation(names)[:harmful])
    }
    files = list[tuple[str, ...]]()

    def damage(group: tuple[str, ...]) -> float:
        files.append(group)
        return 0.5 + sum(harms[name] for name in group)

    alone = damages_alone(names, damage, lambda _step: None, has_time=lambda: True)
    assert len(files) <= 2 + 2 * harmful * (1 + math.ceil(math.log2(count)))
    worst = [name for name in names if harms[name] >= 1]
    assert {name: alone[name] for name in worst} == pytest.approx({name: harms[name] for name in worst})
    assert max((alone[name] for name in names if name not in worst), default=0.0) < 0.1
    assert sum(alone.values()) == pytest.approx(sum(harms.values()))
