"""Nodes in float of least damage in a time, against all choices there are."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from senseapp.descriptions import DENSE_BITS
from senseapp.descriptions.levels import BitScale
from senseapp.records.deployment import FLOAT, INT8, Conversion, LayerTime, LayerTimes
from senseapp.solve.node_precisions import NodeTimes, least_damage, quickest
from tests.cases import first_of

NODES = tuple("abcdefg")


def case(seed: int) -> tuple[dict[str, float], NodeTimes]:
    """Return damages and times of seven nodes in a row, of which some are quicker in float, with borders."""
    generator = np.random.default_rng(seed)
    damages = dict(zip(NODES, (generator.random(7) ** 3).tolist(), strict=True))
    own, real = (dict(zip(NODES, values.tolist(), strict=True)) for values in generator.random((2, 7)))
    pairs = [*pairwise(NODES), (FLOAT, "a"), ("g", FLOAT), ("c", "f"), (INT8, "d")]
    borders = dict(zip(pairs, (0.3 * generator.random(len(pairs))).tolist(), strict=True))
    return damages, NodeTimes(in_int8=own, in_float=real, borders=borders, other=0.5)


@pytest.mark.parametrize("share", [0.8, 0.9, 1.0, 1.1, 1.2])
@pytest.mark.parametrize("seed", first_of(range(4)))
def test_no_choice_in_the_time_does_less_damage(seed: int, share: float):
    damages, times = case(seed)
    most = share * times(())

    def left(group: tuple[str, ...]) -> float:
        return sum(damages[node] for node in NODES if node not in group)

    possible = [group for count in range(8) for group in combinations(NODES, count) if times(group) <= most]
    found = least_damage(damages, times, most)
    assert (found is None) is (not possible)
    if found is not None:
        assert times(found) <= most + 1e-6
        assert left(found) <= min(map(left, possible)) * 1.002 + 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_the_quickest_choice_is_found(seed: int):
    damages, times = case(seed)
    groups = (group for count in range(7) for group in combinations(NODES, count))
    assert times(quickest(damages, times)) <= min(map(times, groups)) + 1e-6


def test_times_are_those_of_layers_and_borders():
    layers = [
        LayerTime(layer=node, level=bits, seconds=s) for node, bits, s in (("a", 8.0, 1.0), ("a", DENSE_BITS, 3.0))
    ]
    borders = (Conversion(first=FLOAT, second="a", seconds=0.25), Conversion(first="a", second="b", seconds=0.5))
    found = LayerTimes(times=tuple(layers), other_seconds=10.0, conversions=borders)
    times = NodeTimes.of(found, ["a", "b"], BitScale(noun="rounding", axis="Bits"))
    assert [times(group) for group in ((), ("a",), ("b",), ("a", "b"))] == [11.25, 13.5, 11.75, 13.0]


def test_times_are_corrected_by_files_that_were_timed():
    """Float costs half as much again as predicted, borders a third; without any file, all is as predicted."""
    _, times = case(1)
    first, crossed = times(()), times.crossed(())
    assert times.corrected({}) == times
    groups = [("a",), ("a", "b"), ("c", "d", "e"), ("b", "g"), NODES[:6]]

    def true(group: tuple[str, ...]) -> float:
        return first + 1.5 * times.added(group) + (times.crossed(group) - crossed) / 3

    found = times.corrected({group: true(group) / first for group in groups})
    assert found(()) == pytest.approx(first)
    for group in [*groups, ("d", "f")]:
        assert found(group) == pytest.approx(true(group), rel=0.03)
