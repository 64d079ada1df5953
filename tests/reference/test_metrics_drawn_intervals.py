"""Intervals of metrics of all images together, against Hall's interval in closed form and by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import beta, skew, t

from senseapp.metrics.detection import OBJECTS
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


def hall(losses: np.ndarray, confidence: float) -> tuple[float, float]:
    """Hall's interval of a mean: T + aT² + a²T³/3 + a/2 between the quantiles of t, a the skewness over 3√n."""
    count, mean = len(losses), losses.mean()
    error, a = losses.std(ddof=1) / math.sqrt(count), skew(losses) / (3 * math.sqrt(count))
    quantile = t.ppf((1 + confidence) / 2, count - 1)

    def transformed(theta: float) -> float:
        statistic = (mean - theta) / error
        return float(statistic + a * statistic**2 + a**2 * statistic**3 / 3 + a / 2)

    low, high = (
        brentq(lambda theta, end=end: transformed(theta) - end, mean - 99 * error, mean + 99 * error)
        for end in (quantile, -quantile)
    )
    return float(low), float(high)


@pytest.mark.parametrize("number", [30, 200])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_of_a_mean_is_halls(number: int, confidence: float) -> None:
    generator = np.random.default_rng(number)
    losses = generator.beta(0.3, 6, number)  # few images lose much
    metric = replace(SHARE, draws=20_000)
    found = metric.interval(
        packed_moments([(0.9,)] * number, [(0.9 - loss,) for loss in losses], np.arange(number)), confidence
    )
    expected = hall(losses, confidence)
    assert found == pytest.approx(expected, abs=0.03 * (expected[1] - expected[0]))


def test_no_change_is_as_uncertain_as_no_change_of_whole_images() -> None:
    moments = packed_moments([(1.0,)] * 30, [(1.0,)] * 30, np.arange(30))
    unseen = brentq(lambda share: beta.cdf(share, 1, 30) / 2 - 0.475, 0, 1)  # mid-P: half of no image's probability
    assert SHARE.interval(moments, 0.95) == pytest.approx((-unseen, unseen), abs=1e-9)
    assert replace(SHARE, needs_labels=False).interval(moments, 0.95) == pytest.approx((0.0, unseen), abs=1e-9)
    assert replace(SHARE, value_unit="").interval(moments, 0.95) == (0.0, 0.0)


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
