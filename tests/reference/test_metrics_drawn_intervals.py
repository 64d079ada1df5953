"""Intervals of metrics of all images together, against quantiles of scipy's distributions and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import moment, norm, pearson3, poisson, t

from senseapp.metrics.detection import AGREEMENT, AGREEMENT_50, MAP_50, OBJECTS, DetectionRecordMetric
from senseapp.metrics.detection.average_precision import ClassTable, average_precisions
from senseapp.metrics.detection.matching import Objects
from senseapp.metrics.intervals import gamma_interval
from senseapp.metrics.records import Drop, Record, RecordMetric, jackknife_weights
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
    """Quantiles of Pearson's third distribution with the moments of a mean, after one more gain and one more loss."""
    mean, count = float(losses.mean()), len(losses)
    variance, third = losses.var(ddof=1) / count, moment(losses, 3) / count**2
    level = norm.cdf(t.ppf((1 + confidence) / 2, count - 1))

    def quantile(share: float, direction: int) -> float:
        spread = variance + smallest**2
        skewness = 2 * (third + direction * smallest**3) / spread**1.5
        return float(pearson3.ppf(share, skewness, mean + direction * smallest, math.sqrt(spread)))

    return quantile(1 - level, -1), quantile(level, 1)


@pytest.mark.parametrize("number", [30, 200])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_mean_has_the_ends_of_a_gamma_distribution(number: int, confidence: float) -> None:
    generator = np.random.default_rng(number)
    losses = generator.beta(0.3, 6, number)  # few images lose much
    moments = packed_moments([(0.9,)] * number, [(0.9 - loss,) for loss in losses], np.arange(number))
    expected = gamma_ends(losses, 0.9 / number, confidence)
    assert SHARE.interval(moments, confidence) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("lost", [0, 1, 4, 40])
def test_of_a_count_it_is_the_exact_interval_of_poisson(lost: int) -> None:
    """Garwood (1936): the means at which so few or so many are seen with a probability of 2.5 %."""
    low, high = gamma_interval(lost, lost, lost, 10**7, loss=(1, 1, 1))
    assert poisson.cdf(lost, high) == pytest.approx(0.025, rel=1e-5)
    assert (poisson.sf(lost - 1, low) if lost else 0.025) == pytest.approx(0.025, rel=1e-5)
    assert gamma_interval(-lost, lost, -lost, 10**7, gain=(1, 1, 1)) == pytest.approx((-high, -low))


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


def test_an_object_lost_at_random_takes_its_share_of_its_class() -> None:
    """Of two classes with 3 and 1 objects on two images: an object takes a sixth or a half."""
    boxes = np.array([[10.0 * each, 0, 10 * each + 8, 8] for each in range(3)])
    rows = np.concatenate([np.array([[0.9, 1], [0.8, 1], [0.7, 2]]), boxes], axis=1)
    records = [AGREEMENT_50.image_record(each, Objects.of(each[:, 2:], each[:, 1])) for each in (rows, rows[:1])]
    taken = np.array([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    drop = AGREEMENT_50.drop(records, records)
    assert drop.smallest == pytest.approx([(taken**power).mean() for power in (1, 2, 3)])
    assert drop.shares == pytest.approx([5 / 6, 1 / 6])


def test_losses_of_one_image_come_together() -> None:
    """Where all is lost on 3 of 40 images, the next loss is that of another whole image, not that of one object."""
    kept, gone = (5.0, 5.0, 5.0), (5.0, 0.0, 0.0)
    apart = [(5.0, 4.0, 4.0)] * 15 + [kept] * 25  # as many objects
    together = [gone] * 3 + [kept] * 37
    ends = [OBJECTS.interval(packed_moments([kept] * 40, after, np.arange(40)), 0.95)[1] for after in (together, apart)]
    lost = 1 / (2 * 40)
    loss = (lost, lost**2, lost**3)
    deltas = OBJECTS.drop([kept] * 40, together).without
    influences = (deltas.mean() - deltas) * 39
    moments = (influences**2).sum() / (40 * 39), (influences**3).sum() / 40**3
    estimate = OBJECTS.drop([kept] * 40, together).estimate
    object_lost = (lost / 5, (lost / 5) ** 2, (lost / 5) ** 3)
    assert ends[0] > 1.1 * gamma_interval(estimate, *moments, 40, loss=object_lost)[1]
    assert ends[0] == pytest.approx(gamma_interval(estimate, *moments, 40, loss=loss)[1], rel=0.005)
    assert ends[1] < 0.6 * ends[0]


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


def precisions_of_right(found: int, objects: int) -> tuple[float, float]:
    """Return average precision rounded to 101 recalls, and smooth, of ``found`` right detections of ``objects``."""
    table = ClassTable(
        num_objects=np.array([float(objects)]),
        images=np.zeros(found, dtype=np.int64),
        right=np.ones((1, found), dtype=bool),
        wrong=np.zeros((1, found), dtype=bool),
    )
    rounded, smooth = (float(average_precisions(table, np.ones((1, 1)), smooth=each)[0, 0]) for each in (False, True))
    return rounded, smooth


def test_the_variance_of_rounding_is_that_of_101_recalls() -> None:
    """Of detections that are all right, average precision is the recall, and that at 101 recalls is rounded."""
    generator, differences = np.random.default_rng(0), []
    for objects in generator.integers(150, 900, 400):
        found = int(objects * generator.uniform(0.5, 0.95))
        rounded, smooth = precisions_of_right(found, objects)
        assert smooth == pytest.approx(found / objects, abs=1e-12)
        differences.append(rounded - smooth * 100 / 101)  # the recall 0 is always reached
    rounding = np.var(differences)
    agreement, precision = (_all_but_the_last_found(metric).rounding for metric in (AGREEMENT_50, MAP_50))
    assert agreement == pytest.approx(rounding, rel=0.15)
    assert precision == pytest.approx(2 * rounding, rel=0.15)
    assert _all_but_the_last_found(AGREEMENT).rounding == pytest.approx(agreement)  # all thresholds are rounded alike


def test_a_recall_of_1_is_rounded_down_as_soon_as_an_object_is_lost() -> None:
    """On average by half a recall, where a few of many objects are lost."""
    generator, beyond = np.random.default_rng(0), []
    for objects in generator.integers(150, 900, 400):
        found = int(objects * generator.uniform(0.97, 1))
        rounded, smooth = precisions_of_right(found, objects)
        beyond.append(smooth - rounded)
    record = AGREEMENT_50.image_record(ROWS, Objects.of(ROWS[:, 2:], ROWS[:, 1]))
    assert AGREEMENT_50.drop([record], [record]).unrounded == pytest.approx(np.mean(beyond), rel=0.1)
    assert _all_but_the_last_found(AGREEMENT_50).unrounded == 0
