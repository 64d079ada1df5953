"""The bootstrap over images, against scipy's and against exact binomial coverage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, bootstrap, t

from senseapp.metrics.bounds import upper_bound_of_share
from senseapp.metrics.detection import AGREEMENT_50, OBJECTS
from senseapp.metrics.detection.matching import Objects
from senseapp.metrics.records import Record, RecordMetric
from tests.cases import first_of
from tests.reference.test_metrics_detection_coverage import packed_moments


@dataclass(frozen=True, kw_only=True)
class _Share(RecordMetric):
    """The mean of one number of each image."""

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        raise NotImplementedError

    def values_of(self, records: Sequence[Record], counts: np.ndarray) -> np.ndarray:
        values = np.array(records)[:, 0]
        return np.divide(counts @ values, counts.sum(1), out=np.full(len(counts), np.nan), where=counts.any(axis=1))


SHARE = _Share(
    name="share", label="Share", change_title="Drop", help="", notable=0.01, value_unit="%", needs_labels=True
)


def share_moments(losses: np.ndarray) -> tuple[float, ...]:
    number = len(losses)
    return packed_moments([(0.9,)] * number, [(0.9 - loss,) for loss in losses], np.arange(number))


@pytest.mark.parametrize("number", [30, 400])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_that_of_scipy_with_wider_tails(number: int, confidence: float) -> None:
    losses = np.random.default_rng(number).beta(0.3, 6, number)  # few images lose much
    reach = t.ppf((1 + confidence) / 2, number - 1) * math.sqrt(number / (number - 1))
    wanted = bootstrap(
        (losses,), np.mean, confidence_level=1 - 2 * ndtr(-reach), n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = wanted.high - wanted.low
    assert SHARE.interval(share_moments(losses), confidence) == pytest.approx(tuple(wanted), abs=0.1 * width)


def test_where_nothing_changed_whole_images_may_have_been_missed() -> None:
    moments = share_moments(np.zeros(30))
    high = upper_bound_of_share(0, 30, 0.95)
    assert SHARE.interval(moments, 0.95) == (-high, high)
    assert replace(SHARE, needs_labels=False).interval(moments, 0.95) == (0.0, high)
    assert replace(SHARE, value_unit="").interval(moments, 0.95) == (0.0, 0.0)


def test_the_bound_of_a_share_of_images_is_nearly_the_exact_one() -> None:
    for lost in (0, 3, 20):
        losses = np.repeat([1.0, 0.0], [lost, 200 - lost])
        assert SHARE.upper_bound(share_moments(losses)) == pytest.approx(upper_bound_of_share(lost, 200), rel=0.12)


def coverage_of_counts(number: int, objects: int, lost: int) -> list[tuple[float, float]]:
    """Return (images that lose, expected; exact coverage) where an image loses ``lost`` of its ``objects``, or none."""
    kept, less = (float(objects),) * 3, (float(objects), float(objects - lost), float(objects - lost))
    ends = np.array(
        [
            OBJECTS.interval(
                packed_moments([kept] * number, [less] * k + [kept] * (number - k), np.arange(number)), 0.95
            )
            for k in range(number + 1)
        ]
    )
    found = []
    for share in np.arange(0.005, 0.5, 0.005):
        left = 1 - share * lost / objects
        covers = (ends[:, 0] <= 1 - 2 * left / (1 + left)) & (1 - 2 * left / (1 + left) <= ends[:, 1])
        found.append((share * number, float(binom.pmf(np.arange(number + 1), number, share) @ covers)))
    return found


@pytest.mark.parametrize(("objects", "lost"), first_of([(3, 3), (3, 1), (1, 1)]))
def test_images_that_lose_alike_are_covered(objects: int, lost: int) -> None:
    """By the binomial distribution, without a simulation."""
    covered = [share for _, share in coverage_of_counts(60, objects, lost)]
    assert min(covered) > 0.9
    assert np.mean(covered) > 0.935


def test_few_lost_objects_on_few_images_are_covered() -> None:
    generator, hits = np.random.default_rng(0), 0
    truth = 1 - 2 * 0.98 / 1.98  # of 100 objects 2 are lost
    for _ in range(200):
        objects = generator.integers(1, 6, 30)
        kept = generator.binomial(objects, 0.98)
        before = [(float(count), float(count), float(count)) for count in objects]
        after = [(float(count), float(left), float(left)) for count, left in zip(objects, kept, strict=True)]
        low, high = OBJECTS.interval(packed_moments(before, after, np.arange(30)), 0.95)
        hits += low <= truth <= high
    assert hits / 200 > 0.92  # percentiles of the draws: 0.80


def test_a_class_counts_the_images_that_hold_it() -> None:
    """Of two classes on 20 images, one is on each and loses a tenth, the other on two and loses nothing."""
    rows = np.array([[0.9, 1, 0, 0, 8, 8], [0.8, 2, 10, 0, 18, 8]])
    both, one = (AGREEMENT_50.image_record(each, Objects.of(each[:, 2:], each[:, 1])) for each in (rows, rows[:1]))
    lost = AGREEMENT_50.image_record(rows[:0], Objects.of(rows[:1, 2:], rows[:1, 1]))
    before, after = [both] * 2 + [one] * 18, [both] * 2 + [one] * 16 + [lost] * 2
    first, second = AGREEMENT_50.of_classes(packed_moments(before, after, np.arange(20)), 0.95)
    assert (first.index, first.num_images, second.index, second.num_images) == (1, 20, 2, 2)
    assert first.drop == pytest.approx(0.1, abs=0.01)  # 101 recalls
    assert 0 <= first.low < first.drop < first.high < 0.5
    assert (second.drop, second.low) == (0, 0)
    assert second.high == upper_bound_of_share(0, 2, 0.95)
