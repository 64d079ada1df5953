"""Of the files of a search, the one of least damage that takes no longer than another; weights worth 32 bits."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, pairwise

import pytest

from senseapp.prove.float_in_time import closest
from senseapp.prove.whole_weights import with_whole_weights
from senseapp.solve.node_precisions import NodeTimes

NODES = tuple("abcdef")
HARM = dict(zip(NODES, (0.5, 0.25, 0.1, 0.06, 0.05, 0.04), strict=True))
PREDICTED = NodeTimes(
    in_int8=dict.fromkeys(NODES, 0.1),
    in_float=dict.fromkeys(NODES, 0.2),
    borders=dict.fromkeys(pairwise(NODES), 0.02),
    other=0.4,
)


def write(group: Collection[str], whole: Collection[str]) -> bytes:
    """Return a file whose parts in float are letters, large ones those with weights in 32 bits."""
    return "".join(sorted(each.upper() if each in whole else each for each in group)).encode() + b" " * 100


def damage_of(content: bytes) -> float:
    name = content.decode().strip().lower()
    return sum(harm for node, harm in HARM.items() if node not in name)


def true_seconds(group: Collection[str]) -> float:
    """Return those of a machine on which float costs 0.6 times as much as predicted, and borders 3 times."""
    return 1.0 + 0.6 * PREDICTED.added(group) + 3 * PREDICTED.crossed(group)


def found(*, most: float = 1.0, holds=lambda _group: True, damage=damage_of):
    """Times of files that do not hold are found to be longer when taken anew."""

    def damage_of_group(group: tuple[str, ...]) -> float:
        return damage(write(group, ()))

    return closest(
        HARM,
        PREDICTED,
        time_of=lambda group: true_seconds(group) / most,
        screen=damage_of_group,
        holds_time=lambda group: true_seconds(group) <= most and holds("".join(sorted(group))),
        progress=lambda _sentence: None,
    )


@pytest.mark.parametrize("most", [1.15, 1.2, 1.25, 1.35])
def test_the_file_of_least_damage_that_is_quick_enough_is_found_although_times_are_not_as_predicted(most: float):
    groups = (group for count in range(6) for group in combinations(NODES, count))
    least = min(damage_of(write(group, ())) for group in groups if true_seconds(group) <= most)
    group = found(most=most)
    assert group is not None
    assert true_seconds(group) <= most
    assert damage_of(write(group, ())) == pytest.approx(least)


def test_a_file_that_a_longer_timing_finds_too_slow_gives_way_to_quicker_ones():
    tried = list[str]()
    group = found(most=1.25, holds=lambda name: tried.append(name) or true_seconds(name) <= 1.12)
    assert 1.0 < true_seconds(group) <= 1.12
    assert true_seconds(tried[0]) > 1.12
    assert len(set(tried)) == len(tried)
    assert found(most=1.25, holds=lambda _name: False) is None
    assert closest({}, PREDICTED, time_of=lambda _: 1.0, screen=lambda _: 0.0, holds_time=bool, progress=print) is None
    assert found(most=0.9) is None  # no parts in float: that is all-int8


def test_a_file_that_does_clearly_more_harm_than_its_parts_gives_way_to_others():
    promising = found(most=1.3)

    def together(content: bytes) -> float:
        return 9.0 if content.decode().strip() == "".join(promising) else damage_of(content)

    group = found(most=1.3, damage=together)
    assert group != promising


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
