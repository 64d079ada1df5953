"""Predictions of several parts: cut, joined, stored and compared as those of one tensor; metrics of whole sets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from senseapp.core.errors import InvalidInput
from senseapp.metrics.predictions import (
    Columns,
    Gathered,
    equal,
    joined,
    mapped,
    num_bytes,
    num_not_finite,
    precise,
    stored,
    tensors_in,
)
from senseapp.metrics.records import Record, RecordMetric


def columns(num_images: int, *, seed: int = 0) -> Columns:
    generator = torch.Generator().manual_seed(seed)
    return Columns(
        parts={
            "scores": torch.randn(num_images, 5, generator=generator, dtype=torch.float16),
            "answers": torch.randint(0, 9, (num_images, 2, 2), generator=generator, dtype=torch.uint8),
            "boxes": tuple(torch.rand(index % 3, 4, generator=generator) for index in range(num_images)),
        }
    )


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_parts_that_are_joined_are_cut_again_to_the_same(sizes: list[int]) -> None:
    parts = [columns(size, seed=number) for number, size in enumerate(sizes)]
    whole, gathered = joined(parts), Gathered(sum(sizes) + 1)
    for part in parts:
        gathered.add(part)
    assert equal(gathered.predictions, whole)
    assert len(whole) == sum(sizes)
    start = 0
    for part in parts:
        assert equal(whole[start : start + len(part)], part)
        start += len(part)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    chosen = whole[order]
    assert isinstance(chosen, Columns)
    for place, index in enumerate(order.tolist()):
        one, other = chosen[place], whole[index]
        assert isinstance(other, dict)
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_what_is_stored_has_no_gradient_and_fractions_in_float32() -> None:
    found = stored(columns(3))
    assert [each.dtype for each in tensors_in(found)] == [torch.float32, torch.uint8, *[torch.float32] * 3]
    grown = stored(torch.ones(2, 3, requires_grad=True) * 2)
    assert isinstance(grown, torch.Tensor)
    assert not grown.requires_grad
    assert {each.dtype for each in tensors_in(precise(found))} == {torch.float64, torch.uint8}


def test_each_image_with_a_number_that_is_not_finite_counts_once() -> None:
    found = columns(6)
    parts = dict(found.parts)
    parts["scores"] = torch.zeros(6, 5)
    parts["scores"][1, 2:4] = math.nan
    parts["boxes"] = (*found.parts["boxes"][:5], torch.full((1, 4), math.inf))
    assert num_not_finite(Columns(parts=parts)) == 2
    assert num_not_finite(torch.tensor([[1.0], [math.nan], [-math.inf]])) == 2


def test_equality_is_to_the_bit_and_takes_nan_for_itself() -> None:
    one = torch.tensor([[1.0, math.nan]])
    assert equal(one, one.clone())
    assert not equal(one, one + 1e-7)
    assert not equal(columns(3), columns(3, seed=1))
    assert not equal(columns(3), columns(4))
    assert equal(columns(3), mapped(columns(3), torch.clone))


def test_bytes_are_those_of_the_tensors_and_of_objects() -> None:
    assert num_bytes(torch.zeros(3, 5)) == 60
    boxes = sum(index % 3 * 16 for index in range(4))
    assert num_bytes(columns(4)) == 4 * 10 + 4 * 4 + boxes + 64 * 4


def test_parts_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one entry for each image.*'a': 2, 'b': 3"):
        Columns(parts={"a": torch.zeros(2), "b": torch.zeros(3)})


@dataclass(frozen=True, kw_only=True)
class Median(RecordMetric):
    """The median of all numbers of all images: no mean over images."""

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        return [float(value) for value in predictions[index]["boxes"].flatten()]

    def values_of(self, records: Sequence[Record], counts: np.ndarray) -> np.ndarray:
        drawn = ([number for record, times in zip(records, row, strict=True) for number in record * int(times)]
                 for row in counts)  # fmt: skip
        return np.array([float(np.median(numbers)) if numbers else 0.0 for numbers in drawn])


MEDIAN = Median(name="median", label="Median", change_title="Drop of the median", help="", notable=0.01)


@given(cut=st.integers(1, 8))
def test_records_of_shards_follow_each_other_exactly(cut: int) -> None:
    before, after = columns(9), columns(9, seed=1)
    whole = MEDIAN.moments(before, after, None)
    assert MEDIAN.merge(*(MEDIAN.moments(before[s], after[s], None) for s in (slice(cut), slice(cut, 9)))) == whole
    change = MEDIAN.change(whole)
    expected = [np.median(torch.cat([each["boxes"].flatten() for each in side]).numpy()) for side in (before, after)]
    assert (change.baseline, change.value) == pytest.approx(expected)
    assert change.delta == pytest.approx(expected[0] - expected[1])
    assert change.num_samples == 9
    assert change.ci_low <= change.delta <= change.ci_high


def test_a_metric_of_whole_sets_has_no_change_against_itself_and_needs_an_image() -> None:
    change = MEDIAN.change(MEDIAN.moments(columns(5), columns(5), None))
    assert (change.delta, change.ci_low, change.ci_high) == (0, 0, 0)
    with pytest.raises(InvalidInput, match="at least one image"):
        MEDIAN.change((0.0,))
