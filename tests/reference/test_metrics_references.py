"""Metrics and intervals beside independent implementations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from senseapp.metrics import METRICS, change_of
from senseapp.metrics.intervals import discordant_interval, mean_interval, proportion_interval, ratio_interval
from senseapp.records.resolution import rank_intervals, spearman


@pytest.fixture(scope="module")
def scores():
    generator = torch.Generator().manual_seed(0)
    before = 2 * torch.randn(200, 12, generator=generator)
    after = before + torch.randn(200, 12, generator=generator)
    return before, after, torch.randint(12, (200,), generator=generator)


def sums(values):
    return tuple(float((values**power).sum()) for power in (1, 2, 3))


def test_loss_equals_torch(scores):
    before, after, labels = scores
    change = change_of("loss", METRICS["loss"].moments(*scores))
    assert change.baseline == pytest.approx(F.cross_entropy(before.double(), labels).item(), rel=1e-12)
    assert change.value == pytest.approx(F.cross_entropy(after.double(), labels).item(), rel=1e-12)


def test_kl_equals_torch(scores):
    before, after, _ = (tensor.double() for tensor in scores)
    expected = F.kl_div(after.log_softmax(1), before.log_softmax(1), log_target=True, reduction="batchmean")
    assert change_of("kl", METRICS["kl"].moments(*scores)).delta == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize(("metric", "k"), [("top1", 1), ("top5", 5)])
def test_accuracy_equals_topk(scores, metric, k):
    before, after, labels = scores
    change = change_of(metric, METRICS[metric].moments(*scores))
    for logits, accuracy in ((before, change.baseline), (after, change.value)):
        assert accuracy == pytest.approx((logits.topk(k).indices == labels[:, None]).any(1).double().mean().item())


def test_sqnr_equals_numpy(scores):
    before, after = scores[0].double().numpy(), scores[1].double().numpy()
    expected = 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())
    assert change_of("sqnr", METRICS["sqnr"].moments(*scores)).value == pytest.approx(expected, rel=1e-12)


def test_student_interval_equals_scipy_where_skewness_is_zero():
    values = np.array([-1.5, -0.5, -0.25, 0.25, 0.5, 1.5]) + 0.3
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values.size, sums(values)) == pytest.approx(tuple(expected), rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_skewness_correction_inverts_halls_transformation(seed):
    values = np.random.default_rng(seed).gamma(0.4, 1.0, 60)
    n, error, skewness = values.size, values.std(ddof=1) / np.sqrt(values.size), stats.skew(values)

    def transformed(mean):  # Hall (1992): t + g t² / 3√n + g² t³ / 27 n + g / 6√n
        t, a = (values.mean() - mean) / error, skewness / np.sqrt(n)
        return t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6

    low, high = mean_interval(n, sums(values), low=0)
    quantile = stats.t.ppf(0.975, n - 1)
    assert (transformed(low), transformed(high)) == pytest.approx((quantile, -quantile), rel=1e-9)


@pytest.mark.parametrize(("count", "n"), [(0, 9), (1, 20), (7, 50), (49, 50), (250, 1000)])
def test_proportion_interval_is_the_exact_one(count, n):
    exact = stats.binomtest(count, n).proportion_ci(0.95, method="exact")
    assert proportion_interval(count, n) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("confidence", [0.95, 1 - 0.05 / 300])
@pytest.mark.parametrize(("worse", "better", "n"), [(5, 0, 50), (1, 0, 50), (3, 3, 100), (40, 10, 500), (30, 20, 50)])
def test_discordant_interval_is_that_of_a_mean_with_one_more_image_of_each_kind(worse, better, n, confidence):
    changes = np.repeat([1, -1, 0], [worse + 1, better + 1, n - worse - better])
    margin = stats.norm.isf((1 - confidence) / 2) * changes.std() / np.sqrt(len(changes))
    found = discordant_interval(worse, better, n, confidence)
    assert found == pytest.approx((changes.mean() - margin, min(1.0, changes.mean() + margin)), abs=1e-9)


def test_ratio_interval_agrees_with_the_bootstrap():
    rng = np.random.default_rng(0)
    signal = rng.gamma(9, 1, 400)
    noise = 0.1 * signal * rng.gamma(4, 0.25, 400)
    picks = rng.integers(0, 400, (4000, 400))
    bootstrap = np.quantile(noise[picks].sum(1) / signal[picks].sum(1), [0.025, 0.975])
    products = (signal**2).sum(), (noise**2).sum(), (signal * noise).sum()
    ours = ratio_interval(400, (signal.sum(), noise.sum()), products)
    assert ours == pytest.approx(tuple(bootstrap), rel=0.01)


def test_rank_intervals_equal_counting():
    rng = np.random.default_rng(0)
    centres, widths = rng.normal(size=15), rng.gamma(1, 0.4, 15)
    lows, highs = centres - widths, centres + widths
    expected = [
        (1 + sum(lows[j] > highs[i] for j in range(15)), 15 - sum(highs[j] < lows[i] for j in range(15)))
        for i in range(15)
    ]
    assert rank_intervals(list(lows), list(highs)) == expected


def test_spearman_equals_scipy_with_ties():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)
    assert spearman(list(first), list(second)) == pytest.approx(stats.spearmanr(first, second).statistic)
