"""Ranks under noise: certain ones, shared ones, undefined ones."""

import math
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from senseapp.core.errors import InvalidInput
from senseapp.metrics import change_of
from senseapp.records.resolution import joint_confidence, mean_ranks, rank_intervals, shared_ranks, spearman, undecided

NAN, INF = math.nan, math.inf


def test_disjoint_intervals_settle_every_rank():
    lows, highs = [0.0, 4.0, 2.0], [1.0, 5.0, 3.0]
    assert rank_intervals(lows, highs) == [(3, 3), (1, 1), (2, 2)]
    assert shared_ranks([0.5, 4.5, 2.5], lows, highs) == [3, 1, 2]
    assert undecided(lows, highs) == set()


def test_touching_intervals_cannot_be_told_apart():
    assert rank_intervals([0, 1], [1, 2]) == [(1, 2), (1, 2)]
    assert undecided([0, 1], [1, 2]) == {0, 1}


def test_two_tied_pairs_rank_like_a_competition():
    assert shared_ranks([2, 9, 3, 8], [1, 8, 2, 7], [3, 10, 4, 9]) == [3, 1, 3, 1]


def test_a_wide_interval_does_not_tie_layers_that_are_told_apart():
    lows, highs = [0.0, 3.9, 2.9], [10.0, 4.1, 3.1]
    assert shared_ranks([5, 4, 3], lows, highs) == [1, 1, 2]


def test_ranks_never_fall_while_deltas_do():
    lows, highs = [4.9, 3.9, 0.0], [5.1, 4.1, 6.0]
    assert rank_intervals(lows, highs)[2] == (1, 3)
    assert shared_ranks([5, 4, 3], lows, highs) == [1, 2, 2]


def test_only_overlapping_neighbours_need_more_images():
    assert undecided([0, 0.5, 5, 9], [1, 1.5, 6, 10]) == {0, 1}


def test_layers_without_any_effect_are_a_settled_tie():
    assert undecided([0, 0, 1], [0, 0, 2]) == set()
    assert shared_ranks([0, 0, 1.5], [0, 0, 1], [0, 0, 2]) == [2, 2, 1]


def test_an_undefined_interval_could_lie_anywhere_but_asks_for_no_images():
    lows, highs = [NAN, 0, 2], [NAN, 1, 3]
    assert rank_intervals(lows, highs) == [(1, 3), (2, 3), (1, 2)]
    assert undecided(lows, highs) == set()
    assert shared_ranks([NAN, 0.5, 2.5], lows, highs)[2] == 1


def test_layers_that_break_the_model_lead_together():
    lows, highs = [INF, 1, INF], [INF, 2, INF]
    assert shared_ranks([INF, 1.5, INF], lows, highs) == [1, 3, 1]
    assert undecided(lows, highs) == set()


def test_no_layers_have_no_ranks():
    assert rank_intervals([], []) == []
    assert shared_ranks([], [], []) == []
    assert undecided([], []) == set()


def test_joint_confidence_widens_every_interval():
    moments = (100, 90, 9, 15, 9)
    alone, joint = change_of("top1", moments), change_of("top1", moments, joint_confidence(50))
    assert joint.ci_low < alone.ci_low < alone.ci_high < joint.ci_high
    assert joint_confidence(1) == joint_confidence(0) == 0.95


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, NAN, 3, 4], [1, 5, NAN, 9], 1.0),
        ([1, 2, INF], [1, 2, 3], 1.0),
        ([1, 1, 1], [1, 2, 3], NAN),
        ([1], [1], NAN),
        ([], [], NAN),
        ([NAN, 1], [1, 2], NAN),
    ],
)
def test_spearman_is_defined_for_every_input(first, second, expected):
    assert spearman(first, second) == pytest.approx(expected, nan_ok=True)


def test_unpaired_values_are_refused():
    with pytest.raises(InvalidInput, match="got 2 and 1"):
        spearman([1, 2], [1])
    with pytest.raises(InvalidInput, match="2 lower and 1 upper"):
        rank_intervals([1, 2], [1])


@given(st.lists(st.sampled_from([0.0, 0.5, 2.0, -1.0, INF]) | st.floats(allow_nan=False)))
def test_mean_ranks_are_those_of_scipy(values: list[float]) -> None:
    assert mean_ranks(values) == rankdata(values).tolist()


def test_a_correlation_does_not_wait_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports it, torch is there and has next to nothing in it."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert spearman([1, 2, 3], [2, 4, 9]) == pytest.approx(1)
