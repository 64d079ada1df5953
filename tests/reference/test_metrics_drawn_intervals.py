"""Intervals of metrics of all images together, against quantiles of scipy's distributions and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, moment, norm, pearson3, poisson, t

from senseapp.metrics.detection import AGREEMENT_50, OBJECTS, DetectionRecordMetric
from senseapp.metrics.detection.average_precision import ClassTable, average_precisions, precision_drop
from senseapp.metrics.detection.matching import Objects
from senseapp.metrics.intervals import gamma_interval, proportion_interval
from senseapp.metrics.jackknife import Drop, jackknife_weights
from senseapp.metrics.records import Record, RecordMetric
from tests.reference.test_metrics_detection_coverage import packed_moments


@dataclass(frozen=True, kw_only=True)
class _Share(RecordMetric):
    """The mean of one number of each image, whose interval is known without a bootstrap."""

    def record(self, predictions: Any, index: int, targets: Any) -> Record:
        raise NotImplementedError

    def values_of(self, records: Sequence[Record], counts: np.ndarray) -> np.ndarray:
        values = np.array(records)[:, 0]
        return np.asarray(counts @ values / counts.sum(1))


SHARE = _Share(
    name="share", label="Share", change_title="Drop", help="", notable=0.01, value_unit="%", needs_labels=True
)


ROWS = np.array([[0.9 - 0.1 * each, 1, 10.0 * each, 0, 10 * each + 8, 8] for each in range(4)])
"""Detections of one class."""


def _all_but_the_last_found(metric: DetectionRecordMetric) -> Drop:
    objects = Objects.of(ROWS[:, 2:], ROWS[:, 1])
    found = metric.image_record(ROWS[:-1], objects)
    return metric.drop([found, found], [found, found])


def gamma_ends(losses: np.ndarray, smallest: float, confidence: float) -> tuple[float, float]:
    """Quantiles of two Pearson's third distributions, half each, with the moments of a mean: a gain or loss more."""
    mean, count = float(losses.mean()), len(losses)
    variance, third = losses.var(ddof=1) / count + smallest**2, moment(losses, 3) / count**2
    parts = [
        pearson3(2 * (third + each * smallest**3) / variance**1.5, mean + each * smallest, math.sqrt(variance))
        for each in (-1, 1)
    ]

    def quantile(share: float) -> float:
        return float(brentq(lambda x: np.mean([each.cdf(x) for each in parts]) - share, -1, 2, xtol=1e-14))

    level = norm.cdf(t.ppf((1 + confidence) / 2, count - 1))
    return quantile(1 - level), quantile(level)


@pytest.mark.parametrize("number", [30, 200])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_mean_has_the_ends_of_a_gamma_distribution(number: int, confidence: float) -> None:
    generator = np.random.default_rng(number)
    losses = generator.beta(0.3, 6, number)  # few images lose much
    moments = packed_moments([(0.9,)] * number, [(0.9 - loss,) for loss in losses], np.arange(number))
    expected = gamma_ends(losses, 0.9 / number, confidence)
    assert SHARE.interval(moments, confidence) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("lost", [0, 1, 4, 40])
def test_of_a_count_it_is_the_mid_p_interval_of_poisson(lost: int) -> None:
    """Means at which fewer and half of as many, or more and half of as many, are seen with a probability of 2.5 %."""
    low, high = gamma_interval(lost, lost, lost, 10**7, losses=[(1, (1, 1, 1))])
    assert poisson.cdf(lost, high) - poisson.pmf(lost, high) / 2 == pytest.approx(0.025, rel=1e-5)
    if lost:
        assert poisson.sf(lost, low) + poisson.pmf(lost, low) / 2 == pytest.approx(0.025, rel=1e-5)
    else:
        assert low == 0
    assert gamma_interval(-lost, lost, -lost, 10**7, gain=(1, 1, 1)) == pytest.approx((-high, -low))


def test_of_two_kinds_of_next_loss_each_counts_by_its_probability() -> None:
    """After 4 losses of one, half of 4 or fewer seen, and of 5 with a share .9 of 1 more and .1 of 3 more losses."""
    _, high = gamma_interval(4, 4, 4, 10**7, losses=[(0.9, (1, 1, 1)), (0.1, (3, 3, 3))])
    seen, one, three = (poisson.cdf(count, high) for count in (3, 4, 6))  # of so many or fewer losses
    assert 0.5 * seen + 0.45 * one + 0.05 * three == pytest.approx(0.025, rel=1e-5)


def test_without_skewness_it_is_that_of_student() -> None:
    reach = t.ppf(0.975, 19) * 3
    for third in (0.0, 1e-7, -1e-7, 0.01, -0.01):
        assert gamma_interval(5.0, 9.0, third, 20) == pytest.approx((5 - reach, 5 + reach), abs=1e-2)


def test_many_images_are_left_out_in_groups() -> None:
    losses = np.random.default_rng(0).beta(0.3, 6, 1_000)
    moments = packed_moments([(0.9,)] * 1_000, [(0.9 - loss,) for loss in losses], np.arange(1_000))
    expected = gamma_ends(losses, 0.9e-3, 0.95)
    assert SHARE.interval(moments, 0.95) == pytest.approx(expected, abs=0.15 * (expected[1] - expected[0]))
    weights = jackknife_weights(1_000)
    assert weights.shape == (256, 1_000)
    assert set(1_000 - weights.sum(axis=1)) == {3, 4}
    assert ((weights == 0).sum(axis=0) == 1).all()


def test_without_any_change_one_loss_may_have_been_missed() -> None:
    moments = packed_moments([(1.0,)] * 30, [(1.0,)] * 30, np.arange(30))
    expected = gamma_ends(np.zeros(30), 1 / 30, 0.95)
    assert SHARE.interval(moments, 0.95) == pytest.approx(expected, abs=1e-9)
    assert replace(SHARE, needs_labels=False).interval(moments, 0.95) == pytest.approx((0.0, expected[1]), abs=1e-9)
    assert replace(SHARE, value_unit="").interval(moments, 0.95) == (0.0, 0.0)


def test_the_smallest_loss_is_that_of_one_object() -> None:
    boxes = np.array([[10.0 * each, 0, 10 * each + 8, 8] for each in range(4)])
    objects = Objects.of(boxes, np.array([1, 1, 1, 1]))
    found = np.concatenate([np.array([[0.9, 1], [0.8, 1], [0.7, 1], [0.6, 1]]), boxes], axis=1)
    for metric in (AGREEMENT_50, OBJECTS):
        before, after = (metric.image_record(each, objects) for each in (found, found[:-1]))
        change = metric.change(packed_moments([before] * 25, [before] * 24 + [after], np.arange(25)))
        drop = metric.drop([before] * 25, [before] * 25)
        assert drop.smallest[0] == pytest.approx(change.delta, abs=0.006)  # 1/101: recalls
        assert drop.shares == pytest.approx(4 * drop.smallest[0])  # of all four objects of an image
        assert metric.drop([before] * 25, [before] * 24 + [after]).losing.tolist() == [False] * 24 + [True]


def test_an_object_lost_at_random_takes_its_share_of_its_class() -> None:
    """Of two classes with 3 and 1 objects on two images: an object takes a sixth or a half."""
    boxes = np.array([[10.0 * each, 0, 10 * each + 8, 8] for each in range(3)])
    rows = np.concatenate([np.array([[0.9, 1], [0.8, 1], [0.7, 2]]), boxes], axis=1)
    records = [AGREEMENT_50.image_record(each, Objects.of(each[:, 2:], each[:, 1])) for each in (rows, rows[:1])]
    taken = np.array([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    drop = AGREEMENT_50.drop(records, records)
    assert drop.smallest == pytest.approx([(taken**power).mean() for power in (1, 2, 3)])
    assert drop.shares == pytest.approx([5 / 6, 1 / 6])


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


@pytest.mark.parametrize("number", [30, 100])
@pytest.mark.parametrize(("objects", "lost"), [(3, 3), (3, 1), (1, 1)])
def test_images_that_lose_alike_are_covered_exactly(number: int, objects: int, lost: int) -> None:
    """By the binomial distribution, without a simulation; of 30 images a third of which lose, a number is coarser."""
    covered = coverage_of_counts(number, objects, lost)
    assert min(share for _, share in covered) > 0.93
    if number == 100:
        assert round(max(share for expected, share in covered if expected > 11.3), 3) <= 0.97


def test_losses_of_one_image_come_together() -> None:
    """Where all is lost on 3 of 40 images, the next loss is that of another whole image, not that of one object."""
    kept, gone = (5.0, 5.0, 5.0), (5.0, 0.0, 0.0)
    apart = [(5.0, 4.0, 4.0)] * 15 + [kept] * 25  # as many objects
    together = [gone] * 3 + [kept] * 37
    ends = [OBJECTS.interval(packed_moments([kept] * 40, after, np.arange(40)), 0.95)[1] for after in (together, apart)]
    lost = proportion_interval(3, 40)[1]  # of whole images, mid-P
    assert ends[0] == pytest.approx(lost / (2 - lost), rel=0.15)  # F1
    assert ends[1] < 0.6 * ends[0]


def test_where_nothing_is_lost_an_image_may_lose_all() -> None:
    kept = (5.0, 5.0, 5.0)
    _, high = OBJECTS.interval(packed_moments([kept] * 60, [kept] * 60, np.arange(60)), 0.95)
    lost = -math.log(0.05) / 60  # mid-P of no event: the rule of three
    assert high == pytest.approx(lost / 2, rel=0.05)
    assert proportion_interval(0, 60)[1] == pytest.approx(lost, rel=0.05)


def test_few_lost_objects_on_few_images_are_covered() -> None:
    generator, hits = np.random.default_rng(0), 0
    truth = 1 - 2 * 0.98 / 1.98  # of 100 objects 2 are lost
    for _ in range(300):
        objects = generator.integers(1, 6, 30)
        kept = generator.binomial(objects, 0.98)
        before = [(float(count), float(count), float(count)) for count in objects]
        after = [(float(count), float(left), float(left)) for count, left in zip(objects, kept, strict=True)]
        low, high = OBJECTS.interval(packed_moments(before, after, np.arange(30)), 0.95)
        hits += low <= truth <= high
    assert hits / 300 > 0.93  # percentiles of the draws: 0.80


def table_of_right(found: int, objects: int, images: int) -> ClassTable:
    """Return the table of ``found`` right detections of ``objects``, both spread over ``images``."""
    return ClassTable(
        num_objects=np.bincount(np.arange(objects) % images, minlength=images).astype(float),
        images=np.arange(found) % images,
        right=np.ones((1, found), dtype=bool),
        wrong=np.zeros((1, found), dtype=bool),
    )


def precisions_of_right(found: int, objects: int) -> tuple[float, float]:
    """Return average precision rounded to 101 recalls, and smooth, of ``found`` right detections of ``objects``."""
    table = table_of_right(found, objects, 1)
    rounded, smooth = (float(average_precisions(table, np.ones((1, 1)), smooth=each)[0, 0]) for each in (False, True))
    return rounded, smooth


def test_without_rounding_the_drop_is_that_of_all_recalls() -> None:
    generator = np.random.default_rng(0)
    for objects in generator.integers(150, 900, 20):
        found = int(objects * generator.uniform(0.5, 0.95))
        rounded, smooth = precisions_of_right(found, objects)
        assert smooth == pytest.approx(found / objects, abs=1e-12)
        table, full = (table_of_right(each, int(objects), 10) for each in (found, int(objects)))
        drop = precision_drop({1: full}, {1: table}, 10, own=True)
        assert drop.smooth == pytest.approx(1 - smooth)
        assert drop.estimate == pytest.approx(1 - rounded)
