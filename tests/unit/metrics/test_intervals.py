"""Intervals at their edges: nothing changed, everything changed, one image, no spread."""

import math

import pytest
from scipy.stats import binomtest

from senseapp.core.errors import InvalidInput
from senseapp.metrics import METRICS, change_of
from senseapp.metrics.bounds import upper_bound_of_share
from senseapp.metrics.intervals import discordant_interval, mean_interval, proportion_interval, ratio_interval

INF = math.inf


def sums(values):
    return tuple(math.fsum(value**power for value in values) for power in (1, 2, 3))


@pytest.mark.parametrize("n", [1, 10, 100, 5000])
def test_no_change_at_all_still_has_a_width(n):
    bound = min(1, math.sqrt(2) * 1.959963984540054 / (n + 2))
    assert discordant_interval(0, 0, n) == pytest.approx((-bound, bound), abs=1e-9)


@pytest.mark.parametrize("n", [1, 10, 100, 5000])
def test_full_agreement_leaves_open_what_is_seen_once_in_forty_times(n):
    assert proportion_interval(0, n) == pytest.approx((0, 1 - 0.025 ** (1 / n)), abs=1e-9)


def test_everything_lost_reaches_one():
    low, high = discordant_interval(50, 0, 50)
    assert high == 1
    assert 0.85 < low < 1 - upper_bound_of_share(0, 50, 0.975)
    assert proportion_interval(50, 50)[1] == 1


@pytest.mark.parametrize(
    ("worse", "better", "significant"), [(6, 0, True), (5, 0, False), (13, 4, True), (12, 4, False), (5, 1, False)]
)
@pytest.mark.parametrize("num_samples", [50, 200, 100_000])
def test_zero_is_excluded_just_when_the_exact_mcnemar_test_rejects(worse, better, significant, num_samples):
    assert bool(binomtest(worse, worse + better).pvalue < 0.05) is significant
    assert (discordant_interval(worse, better, num_samples)[0] > 0) is significant


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (999_999, 1), (999_999, 0), (1, 999_999), (1000, 1000)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 1 - 0.05 / 300, 1 - 1e-14])
def test_extreme_counts_and_confidences_stay_in_range(counts, confidence):
    low, high = discordant_interval(*counts, 1_000_000, confidence)
    assert -1 <= low <= (counts[0] - counts[1]) / 1_000_000 <= high <= 1
    assert low < high


def test_equal_differences_leave_no_spread():
    assert mean_interval(4, sums([0.1] * 4)) == pytest.approx((0.1, 0.1))
    assert mean_interval(4, sums([0.0] * 4)) == (0, 0)


def test_tiny_spread_on_a_large_mean_stays_finite_and_narrow():
    low, high = mean_interval(50, sums([1.0 + 3e-6 * (k % 3) for k in range(50)]))
    assert 1 <= low < high < 1.00001


def test_one_image_says_nothing_about_a_mean():
    assert mean_interval(1, (2.0, 4.0, 8.0)) == (-INF, INF)
    assert mean_interval(1, (2.0, 4.0, 8.0), low=0, high=1) == (0, 1)
    assert ratio_interval(1, (2.0, 1.0), (4.0, 1.0, 2.0)) == (0, INF)


def test_right_skewed_values_move_the_interval_right():
    low, high = mean_interval(100, sums([0.01] * 95 + [1.0] * 5), low=0)
    mean = 0.0595
    assert 0 <= low < mean < high
    assert high - mean > 1.5 * (mean - low)


def test_squares_that_overflow_make_the_interval_unbounded():
    assert mean_interval(2, (1e200, INF, INF)) == (-INF, INF)


def test_ratio_at_its_ends():
    assert ratio_interval(3, (6.0, 0.0), (12.0, 0.0, 0.0)) == (0, 0)
    assert ratio_interval(3, (0.0, 6.0), (0.0, 12.0, 0.0)) == (INF, INF)
    assert ratio_interval(3, (6.0, 3.0), (12.0, 3.0, 6.0)) == pytest.approx((0.5, 0.5))


def test_a_silent_network_has_no_ratio_but_its_run_ends():
    assert change_of("sqnr", (2, 0, 0, 0, 0, 0)).delta == 0
    assert change_of("sqnr", (2, 0, 1, 0, 1, 0)).value == -INF


@pytest.mark.parametrize("metric", ["top1", "agreement", "loss", "kl", "sqnr"])
def test_no_images_are_refused(metric):
    with pytest.raises(InvalidInput, match="at least one image"):
        change_of(metric, (0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("confidence", [0.0, 0.49, 1.0, math.nan])
def test_a_confidence_out_of_range_is_refused(confidence):
    with pytest.raises(InvalidInput, match="confidence"):
        discordant_interval(1, 0, 10, confidence)


def test_moments_of_different_metrics_cannot_be_added():
    with pytest.raises(ValueError, match="zip"):
        METRICS["top1"].merge((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6))
