"""Runs beside each other: layers matched by name, ranks compared, what is missing said."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from senseapp.core.errors import InvalidSpec
from senseapp.records.comparison import Comparison, Side, compare, shared_metrics
from senseapp.records.measurement import Status
from tests.fake_session import a_measurement, a_result

NAMES = ("a", "b", "c", "d")


def side(deltas, *, title="one", names=None, part="shown", **changes) -> Side:
    """A run that measured each layer of ``deltas`` at 50 %; None for one that could not be."""
    measured = [
        a_measurement(layer, delta=delta)
        if delta is not None
        else a_measurement(layer, status=Status.NOT_APPLICABLE, changes=(), reason="Its width is fixed.")
        for layer, delta in deltas.items()
    ]
    result = a_result(measured, names=tuple(names or deltas), **changes)
    return Side(title=title, result=result, level=0.5, part=part)


def by_name(*deltas, names=NAMES):
    return dict(zip(names, deltas, strict=True))


def ranks(comparison: Comparison, which: int) -> list[float]:
    return [layer.ranks[which] for layer in comparison.layers]


def test_rank_one_is_the_most_fragile_and_the_furthest_move_comes_first():
    found = compare([side(by_name(0.4, 0.3, 0.2, 0.1)), side(by_name(0.1, 0.3, 0.2, 0.4))], "top1")
    assert ranks(found, 0) == [1, 2, 3, 4]
    assert ranks(found, 1) == [4, 2, 3, 1]
    assert [(layer.layer, layer.rank_change) for layer in found.layers if layer.rank_change] == [("a", 3), ("d", 3)]


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_correlation_is_scipys_also_with_ties(seed):
    generator = np.random.default_rng(seed)
    names = tuple(f"layer{i}" for i in range(40))
    first, second = (generator.integers(0, 12, size=40) / 100 for _ in range(2))
    pair = [side(by_name(*map(float, deltas), names=names)) for deltas in (first, second)]
    assert compare(pair, "top1").agreement() == pytest.approx(spearmanr(first, second).statistic)


def test_a_rank_correlation_that_is_not_defined_is_nan():
    constant = side(by_name(0.1, 0.1, 0.1, 0.1))
    assert math.isnan(compare([constant, side(by_name(1, 2, 3, 4))], "top1").agreement())
    strangers = compare([side({"a": 0.1}), side({"b": 0.2})], "top1")
    assert strangers.layers == ()
    assert math.isnan(strangers.agreement())


def test_layers_are_matched_by_name_and_the_others_say_why_not():
    short = side({"a": 0.1, "b": None}, names=("a", "b", "d"))
    found = compare([short, side(by_name(0.1, 0.2, 0.3, math.nan))], "top1")
    assert [layer.layer for layer in found.layers] == ["a"]
    assert found.unmatched == {
        "b": ("Its width is fixed.", ""),
        "c": ("The model has no layer of this name.", ""),
        "d": ("Not measured.", "The figure is not a number."),
    }


def test_layers_that_nobody_looked_at_are_not_listed():
    pair = [side({"a": 0.1, "b": 0.2}, names=NAMES) for _ in range(2)]
    assert compare(pair, "top1").unmatched == {}


def grouped(members: tuple[str, ...], delta: float, **changes) -> Side:
    alone = [a_measurement(name, delta=0.3) for name in NAMES if name not in members]
    group = a_measurement(members[0], delta=delta, members=members, group="g0")
    return Side(title="groups", result=a_result([group, *alone], names=NAMES, **changes), level=0.5)


def test_a_group_on_every_side_counts_once():
    found = compare([grouped(("a", "b"), 0.1), grouped(("a", "b"), 0.5)], "top1")
    assert [layer.members for layer in found.layers] == [("a", "b"), ("c",), ("d",)]
    assert ranks(found, 1) == [1, 2.5, 2.5]


def test_a_group_is_compared_with_each_of_its_members_measured_alone():
    found = compare([grouped(("a", "b"), 0.1), side(by_name(0.5, 0.1, 0.2, 0.3))], "top1")
    assert [layer.layer for layer in found.layers] == list(NAMES)
    assert ranks(found, 0) == [3.5, 3.5, 1.5, 1.5]


def test_a_move_within_the_noise_is_not_sure():
    """The made-up intervals reach 0.01 to either side."""
    near = compare([side(by_name(0.10, 0.11, 0.3, 0.4)), side(by_name(0.11, 0.10, 0.3, 0.4))], "top1")
    assert [layer.surely_moved for layer in near.layers] == [False] * 4
    assert near.layers[0].rank_ranges == ((3, 4), (3, 4))
    far = compare([side(by_name(0.10, 0.15, 0.3, 0.4)), side(by_name(0.15, 0.10, 0.3, 0.4))], "top1")
    assert [layer.surely_moved for layer in far.layers] == [True, True, False, False]


def test_estimates_against_measurements_of_one_run():
    whole = side(by_name(0.1, 0.2, 0.3, 0.4)).result
    estimates = tuple(
        a_measurement(name, delta=delta, estimated=True) for name, delta in by_name(0.1, 0.3, 0.2, 0.9).items()
    )
    whole = replace(whole, estimates=estimates)
    sides = [Side(title=part, result=whole, level=0.5, part=part) for part in ("estimated", "measured")]
    found = compare(sides, "kl")
    assert [layer.estimated for layer in found.layers] == [(True, False)] * 4
    assert found.agreement() == pytest.approx(spearmanr([1, 3, 2, 9], [1, 2, 3, 4]).statistic)
    assert not any(layer.surely_moved for layer in found.layers)  # an estimate has no interval
    assert all(layer.rank_ranges[0] == (1, 4) for layer in found.layers)


def test_three_runs():
    deltas = [by_name(*order) for order in ((1, 2, 3, 4), (1, 2, 4, 3), (4, 3, 2, 1))]
    found = compare([side(one) for one in deltas], "top1")
    assert found.agreement(0, 2) == pytest.approx(-1)
    assert found.layers[0].layer == "a"
    assert found.layers[0].ranks == (4, 4, 1)


def test_a_layer_that_breaks_the_model_ranks_first():
    found = compare([side(by_name(math.inf, 0.1, 0.2, 0.3)), side(by_name(0.1, 0.2, 0.3, 0.4))], "top1")
    assert ranks(found, 0) == [1, 4, 3, 2]


def test_what_cannot_be_compared_is_said():
    one = side({"a": 0.1})
    with pytest.raises(InvalidSpec, match="two runs or more, got 1"):
        compare([one], "top1")
    with pytest.raises(InvalidSpec, match=r"has no values of 'sqnr' at this level. It has: kl, top1"):
        compare([one, one], "sqnr")
    with pytest.raises(InvalidSpec, match=r"was not run at level 0.9. It has 0.25, 0.5"):
        Side(title="one", result=one.result, level=0.9)


def test_only_metrics_of_every_side_are_shared():
    label_free = [a_measurement("a", changes=(a_measurement().changes[1],))]
    other = Side(title="other", result=a_result(label_free, names=("a",)), level=0.5)
    assert shared_metrics([side({"a": 0.1}), other]) == {"kl"}
    assert shared_metrics([]) == frozenset()
