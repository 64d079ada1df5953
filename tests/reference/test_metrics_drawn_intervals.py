"""Intervals of metrics of all images together, against the score equation solved by a root finder and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import moment, norm, t

from senseapp.metrics.detection import AGREEMENT_50, MAP_50, OBJECTS
from senseapp.metrics.detection.average_precision import ClassTable, average_precisions
from senseapp.metrics.detection.matching import ClassRecord, Objects, packed
from senseapp.metrics.intervals import score_interval
from senseapp.metrics.records import Record, RecordMetric, jackknife_weights
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


NONE = np.zeros((1, 0), dtype=bool)


def score(losses: np.ndarray, smallest: float, confidence: float) -> tuple[float, float]:
    """The means that lie just as far from that of ``losses`` as their own deviation allows, with one more loss seen."""
    mean, count = float(losses.mean()), len(losses)
    variance = losses.var(ddof=1) / count + smallest**2
    third = moment(losses, 3) / count**2 + smallest**3
    quantile = t.ppf((1 + confidence) / 2, count - 1)

    def excess(theta: float) -> float:
        rate = third / variance if (theta - mean) * third > 0 else 0.0  # it is never assumed to be lower
        return float((mean - theta) ** 2 - quantile**2 * (variance + (theta - mean) * rate))

    reach = 20 * math.sqrt(variance)
    low, high = brentq(excess, mean - reach, mean), brentq(excess, mean, mean + reach)
    return float(low), float(high)


@pytest.mark.parametrize("number", [30, 200])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_mean_is_its_score_interval(number: int, confidence: float) -> None:
    generator = np.random.default_rng(number)
    losses = generator.beta(0.3, 6, number)  # few images lose much
    moments = packed_moments([(0.9,)] * number, [(0.9 - loss,) for loss in losses], np.arange(number))
    assert SHARE.interval(moments, confidence) == pytest.approx(score(losses, 1 / number, confidence), abs=1e-9)


def test_of_a_count_it_is_the_score_interval_of_poisson() -> None:
    """Above, theta with (k - theta)² = z² theta; below, a variance as seen."""
    low, high = score_interval(5.0, 5.0, 5.0, 200_000)
    assert (5 - high) ** 2 == pytest.approx(norm.ppf(0.975) ** 2 * high, rel=1e-4)
    assert 5 - low == pytest.approx(norm.ppf(0.975) * math.sqrt(5), rel=1e-4)
    assert score_interval(-5.0, 5.0, -5.0, 200_000) == pytest.approx((-high, -low))


def test_many_images_are_left_out_in_groups() -> None:
    losses = np.random.default_rng(0).beta(0.3, 6, 1_000)
    moments = packed_moments([(0.9,)] * 1_000, [(0.9 - loss,) for loss in losses], np.arange(1_000))
    expected = score(losses, 1e-3, 0.95)
    assert SHARE.interval(moments, 0.95) == pytest.approx(expected, abs=0.15 * (expected[1] - expected[0]))
    weights = jackknife_weights(1_000)
    assert weights.shape == (256, 1_000)
    assert set(1_000 - weights.sum(axis=1)) == {3, 4}
    assert ((weights == 0).sum(axis=0) == 1).all()


def test_without_any_change_one_loss_may_have_been_missed() -> None:
    moments = packed_moments([(1.0,)] * 30, [(1.0,)] * 30, np.arange(30))
    expected = score(np.zeros(30), 1 / 30, 0.95)
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
        assert metric.smallest_loss([before] * 25, 1.0) == pytest.approx(change.delta, abs=0.006)  # 1/101: recalls


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


def test_the_variance_of_rounding_is_that_of_101_recalls() -> None:
    """Of detections that are all right, average precision is the recall, and that at 101 recalls is rounded."""
    generator, differences = np.random.default_rng(0), []
    for objects in generator.integers(150, 900, 400):
        found = int(objects * generator.uniform(0.5, 0.95))
        table = ClassTable(
            num_objects=np.array([float(objects)]),
            images=np.zeros(found, dtype=np.int64),
            right=np.ones((1, found), dtype=bool),
            wrong=np.zeros((1, found), dtype=bool),
        )
        rounded, smooth = (average_precisions(table, np.ones((1, 1)), smooth=each)[0, 0] for each in (False, True))
        assert smooth == pytest.approx(found / objects, abs=1e-12)
        differences.append(rounded - smooth * 100 / 101)  # the recall 0 is always reached
    one_class = packed([ClassRecord(label=1, num_objects=9, scores=np.zeros(0), right=NONE, ignored=NONE)])
    assert MAP_50.rounding_variance([one_class]) == pytest.approx(2 * np.var(differences), rel=0.15)
    assert AGREEMENT_50.rounding_variance([one_class]) == pytest.approx(np.var(differences), rel=0.15)
