"""The search for nodes in float on made-up networks, whose damage and time are sums over nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from senseapp.core.steps import OptionalSteps
from senseapp.prove.mixed_precision import (
    Group,
    QuantizedFiles,
    damages_alone,
    fill_time_budget,
    search_mixed_precision,
)
from senseapp.solve.node_precisions import NodeTimes

NODES = tuple("abcdefgh")


def harm_of(**harms: float):
    """Return the damage of a file: that of every node in int8, and 1 that no node can undo."""
    return lambda group: 1.0 + sum(harms.get(name, 0.0) for name in NODES if name not in group)


SECONDS = NodeTimes(in_int8=dict.fromkeys(NODES, 0.0), in_float=dict.fromkeys(NODES, 0.1), borders={}, other=1.0)


@dataclass
class MadeUpFiles(QuantizedFiles):
    """Files whose damage and time are functions of their nodes in float."""

    harm: Callable[[Group], float]
    most: float
    seconds: NodeTimes = SECONDS
    enough: Callable[[float], bool] = lambda damage: damage <= 0
    keeps: Callable[[Group], bool] = lambda _group: True
    true_seconds: Callable[[Group], float] | None = None
    nodes: Group = NODES

    def damage(self, in_float: Group) -> float:
        return self.harm(in_float)

    def rough_damage(self, in_float: Group) -> float:
        return self.harm(in_float)

    def damage_alone(self, in_int8: Group) -> float:
        return self.rough_damage(tuple(node for node in self.nodes if node not in in_int8))

    def is_enough(self, in_float: Group) -> bool:
        return self.enough(self.damage(in_float))

    def rough_time(self, in_float: Group) -> float:
        return (self.true_seconds or self.seconds)(in_float) / self.most

    def keeps_time(self, in_float: Group) -> bool:
        return self.rough_time(in_float) <= 1 and self.keeps(in_float)


def found(harm: Callable[[Group], float], *, most: float, steps: OptionalSteps | None = None, **parts):
    return search_mixed_precision(MadeUpFiles(harm, most, **parts), steps or OptionalSteps())


SMALL = dict.fromkeys(NODES, 0.001) | {"c": 1.0}
"""Seven gains of 0.1 %, too small to be taken one by one."""


@pytest.mark.parametrize(("most", "count"), [(1.35, 3), (1.55, 5), (1.05, 0)])
def test_the_rest_of_the_time_is_used_for_small_gains_together(most, count):
    result = found(harm_of(**SMALL), most=most)
    assert len(result.in_float) == count
    assert not count or "c" in result.in_float


def test_time_is_not_used_where_nothing_is_gained():
    def damage(group: Group) -> float:
        return 1.0 if "c" not in group else 0.1 + 0.01 * len(group)

    assert found(damage, most=1.8, enough=lambda damage: damage <= 0.11).in_float == ("c",)


def test_no_more_nodes_are_in_float_than_it_takes():
    harms = dict.fromkeys(NODES, 0.1) | {"a": 1.0, "b": 0.5, "c": 0.2}
    for enough, expected in ((1.75, "ab"), (1.55, "abc")):
        result = found(harm_of(**harms), most=1.75, enough=lambda damage, most=enough: damage <= most)
        assert set(result.in_float) == set(expected)


def test_where_no_file_holds_its_time_all_is_in_int8_and_a_note_says_so():
    result = found(harm_of(**dict.fromkeys(NODES, 1.0)), most=1.75, keeps=lambda _group: False)
    assert result.in_float == ()
    assert any("keep to the time" in note for note in result.notes)


def test_nodes_that_gain_together_only_go_to_float_together():
    """Only all four together gain, so no node beside all others in int8 would be chosen."""
    for group in ("aceg", "fgh", "efgh"):
        result = found(lambda names, group=group: 1.0 - 0.5 * (set(group) <= set(names)), most=1.45)
        assert set(result.in_float) >= set(group)


def test_where_float_is_quicker_nearly_all_goes_to_float():
    """A node in float saves time, but for the borders between float and int8: as without fast int8 arithmetic."""
    faster = replace(
        SECONDS, in_float=dict.fromkeys(NODES, -0.1), borders=dict.fromkeys(pairwise(NODES), 0.3), other=2.0
    )
    assert len(found(harm_of(**dict.fromkeys(NODES, 0.0001)), most=1.9, seconds=faster).in_float) == 7


@pytest.mark.parametrize("budget", [0.0, 350.0, 5000.0])
def test_a_search_that_is_ended_by_its_time_says_so(budget: float):
    now = 0.0

    def slow(group: Group) -> float:
        nonlocal now
        now += 100.0
        return harm_of(**SMALL)(group)

    steps = OptionalSteps(clock=lambda: now)
    steps.start(budget)
    result = found(slow, most=9.0, steps=steps)
    assert any("was ended after" in note for note in result.notes) == (budget < 5000)
    assert now <= 2500
    assert harm_of(**SMALL)(result.in_float) <= harm_of(**SMALL)(())


@pytest.mark.parametrize("count", [2, 40, 300])
@pytest.mark.parametrize("harmful", [1, 8])
def test_the_harmful_ones_of_hundreds_of_nodes_are_found_with_few_files(count: int, harmful: int):
    """Plain search over all nodes would take as many files as there are nodes."""
    names = [f"n{place}" for place in range(count)]
    generator = np.random.default_rng(count)
    harms = dict.fromkeys(names, 1e-5) | {
        name: 4.0 + place
        for place, name in enumerate(generator.permutation(names)[:harmful])  # each over a twentieth
    }
    files = list[tuple[str, ...]]()

    def damage(group: tuple[str, ...]) -> float:
        files.append(group)
        return 0.5 + sum(harms[name] for name in group)

    made_up = MadeUpFiles(lambda _group: 0.0, 1.0, nodes=tuple(names))
    made_up.damage_alone = damage
    alone = damages_alone(made_up, OptionalSteps())
    assert len(files) <= 2 + 2 * harmful * (1 + math.ceil(math.log2(count)))
    worst = [name for name in names if harms[name] >= 1]
    assert {name: alone[name] for name in worst} == pytest.approx({name: harms[name] for name in worst})
    assert max((alone[name] for name in names if name not in worst), default=0.0) < 0.1
    assert sum(alone.values()) == pytest.approx(sum(harms.values()))


def test_a_node_without_which_outputs_are_no_numbers_is_found_beside_the_harmful_ones():
    names = tuple(f"n{place}" for place in range(40))

    def damage(group: Group) -> float:
        return math.inf if "n7" in group else sum({"n20": 0.5, "n33": 1.0}.get(name, 1e-5) for name in group)

    made_up = MadeUpFiles(lambda _group: 0.0, 1.0, nodes=names)
    made_up.damage_alone = damage
    alone = damages_alone(made_up, OptionalSteps())
    assert sorted(names, key=lambda name: -alone[name])[:3] == ["n7", "n33", "n20"]
    assert math.isfinite(sum(alone.values()))


HARM = dict(zip("abcdef", (0.5, 0.25, 0.1, 0.06, 0.05, 0.04), strict=True))
PREDICTED = NodeTimes(
    in_int8=dict.fromkeys(HARM, 0.1),
    in_float=dict.fromkeys(HARM, 0.2),
    borders=dict.fromkeys(pairwise(HARM), 0.02),
    other=0.4,
)


def left(group: Group) -> float:
    return sum(harm for node, harm in HARM.items() if node not in group)


def true_seconds(group: Group) -> float:
    """Return those of a machine on which float costs 0.6 times as much as predicted, and borders 3 times."""
    return 1.0 + 0.6 * PREDICTED.added(group) + 3 * PREDICTED.crossed(group)


def filled(*, most: float = 1.0, harm: Callable[[Group], float] = left, keeps=lambda _group: True) -> Group | None:
    files = MadeUpFiles(harm, most, seconds=PREDICTED, keeps=keeps, true_seconds=true_seconds, nodes=tuple(HARM))
    return fill_time_budget(files, HARM, OptionalSteps())


@pytest.mark.parametrize("most", [1.15, 1.2, 1.25, 1.35])
def test_the_file_of_least_damage_that_is_quick_enough_is_found_although_times_are_not_as_predicted(most: float):
    groups = (group for count in range(6) for group in combinations(HARM, count))
    least = min(left(group) for group in groups if true_seconds(group) <= most)
    group = filled(most=most)
    assert group is not None
    assert true_seconds(group) <= most
    assert left(group) == pytest.approx(least)


def test_a_file_that_a_precise_timing_finds_too_slow_gives_way_to_quicker_ones():
    tried = list[Group]()
    group = filled(most=1.25, keeps=lambda each: tried.append(each) or true_seconds(each) <= 1.12)
    assert 1.0 < true_seconds(group) <= 1.12
    assert true_seconds(tried[0]) > 1.12
    assert len(set(tried)) == len(tried)
    assert filled(most=1.25, keeps=lambda _group: False) is None
    assert filled(most=0.9) is None  # no parts in float: that is all-int8


def test_a_file_that_does_clearly_more_harm_than_its_parts_gives_way_to_others():
    promising = filled(most=1.3)
    assert filled(most=1.3, harm=lambda group: 9.0 if group == promising else left(group)) != promising
