"""How often nominal 95 % intervals hold the truth: simulated, and resampled from a real network's images.

The populations of the second kind are the per-image differences of a small network trained on handwritten digits,
with one layer at a time made sparse; samples are drawn from its 1,197 held-out images with replacement.
Averages over settings must lie between 93 % and 97 %, with no setting under 90 %. Intervals of counts may cover more.
"""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import gammaln, xlogy
from sklearn.datasets import load_digits
from torch import nn

from senseapp.metrics import METRICS, change_of
from senseapp.metrics.intervals import discordant_interval, mean_interval, proportion_interval
from tests.cases import first_of

DRAWS = 600


def trinomial_coverage(num_samples, changed, drop):
    """Exact coverage of the top-1 interval: enumerate the counts of images that got worse and better."""
    counts = np.arange(min(num_samples, round(4 * changed * num_samples) + 15) + 1)
    worse, better = (grid.ravel() for grid in np.meshgrid(counts, counts))
    possible = worse + better <= num_samples
    worse, better = worse[possible], better[possible]
    same = num_samples - worse - better
    logs = gammaln(num_samples + 1) - gammaln(worse + 1) - gammaln(better + 1) - gammaln(same + 1)
    logs += xlogy(worse, (changed + drop) / 2) + xlogy(better, (changed - drop) / 2) + xlogy(same, 1 - changed)
    likely = logs > np.log(2e-5)
    weights = np.exp(logs[likely])
    assert weights.sum() > 0.985
    ends = [
        discordant_interval(int(b), int(c), num_samples) for b, c in zip(worse[likely], better[likely], strict=True)
    ]
    return float(weights @ [low <= drop <= high for low, high in ends] / weights.sum())


def test_top1_simulated_with_at_least_ten_changed_images():
    settings = [(n, changed, changed * lean) for n in (50, 100) for changed in (0.2, 0.3) for lean in (0, 0.5, 1)]
    settings += [(200, 0.05, 0.0), (200, 0.05, 0.05), (200, 0.1, 0.05), (500, 0.02, 0.01)]
    coverages = [trinomial_coverage(*setting) for setting in settings]
    assert 0.945 <= np.mean(coverages) <= 0.965
    assert min(coverages) >= 0.93
    assert max(coverages) <= 0.98


def test_top1_simulated_with_few_changed_images_errs_on_the_safe_side():
    settings = [(100, k / 100, k / 100 * lean) for k in (*range(1, 10), 5.5) for lean in (0, 0.5, 0.8, 1)]
    coverages = [trinomial_coverage(*setting) for setting in settings]
    assert 0.95 <= np.mean(coverages) <= 0.985
    assert min(coverages) >= 0.93


@pytest.mark.parametrize("num_samples", [50, 200])
def test_agreement_simulated(num_samples):
    counts = np.arange(num_samples + 1)
    ends = np.array([proportion_interval(int(count), num_samples) for count in counts])
    rates = np.linspace(0.05, 0.5, 46)
    coverages = []
    for rate in rates:
        logs = gammaln(num_samples + 1) - gammaln(counts + 1) - gammaln(num_samples - counts + 1)
        weights = np.exp(logs + xlogy(counts, rate) + xlogy(num_samples - counts, 1 - rate))
        coverages.append(weights[(ends[:, 0] <= rate) & (rate <= ends[:, 1])].sum())
    assert 0.95 <= np.mean(coverages) <= 0.97
    assert min(coverages) >= 0.95


def mean_coverage(interval, values, truth):
    sums = np.stack([(values**power).sum(1) for power in (1, 2, 3)], 1).tolist()
    ends = np.array([interval(values.shape[1], tuple(row)) for row in sums])
    return float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))


POPULATIONS = {
    "loss": {
        "normal": (lambda rng, shape: rng.normal(0.3, 1, shape), 0.3),
        "two exponential tails": (lambda rng, shape: rng.exponential(2, shape) - rng.exponential(1, shape), 1.0),
        "heavy tails": (lambda rng, shape: rng.standard_t(5, shape), 0.0),
        "skewed": (lambda rng, shape: rng.gamma(0.5, 2, shape) - 0.5, 0.5),
        "lognormal": (lambda rng, shape: rng.lognormal(0, 1, shape), np.exp(0.5)),
    },
    "kl": {
        "chi-squared": (lambda rng, shape: rng.chisquare(1, shape), 1.0),
        "gamma 1/4": (lambda rng, shape: rng.gamma(0.25, 1, shape), 0.25),
        "exponential": (lambda rng, shape: rng.exponential(1, shape), 1.0),
        "lognormal": (lambda rng, shape: rng.lognormal(0, 1, shape), np.exp(0.5)),
    },
}
"""How images are drawn, and their mean, by what is measured; a divergence is never negative."""


@pytest.mark.parametrize("num_samples", first_of([200, 100, 400]))
@pytest.mark.parametrize("metric", POPULATIONS)
def test_means_simulated(metric, num_samples):
    interval = partial(mean_interval, low=0) if metric == "kl" else mean_interval
    rng = np.random.default_rng(metric == "kl")
    coverages = {
        name: mean_coverage(interval, draw(rng, (2 * DRAWS, num_samples)), truth)
        for name, (draw, truth) in POPULATIONS[metric].items()
    }
    assert 0.93 <= np.mean(list(coverages.values())) <= 0.97, coverages
    assert min(coverages.values()) >= 0.91, coverages


@pytest.fixture(scope="module")
def populations():
    """Class scores of a trained network and of its twelve sparse versions, with labels."""
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[:600]), labels[:600]).backward()
        optimizer.step()
    images, labels = images[600:], labels[600:]
    with torch.no_grad():
        before = net(images)
        return before, [sparse_scores(net, i, s, images) for i in (0, 2, 4) for s in (0.3, 0.5, 0.7, 0.9)], labels


def sparse_scores(net, layer, sparsity, images):
    weight = net[layer].weight
    dense = weight.clone()
    weight.mul_(weight.abs() > weight.abs().flatten().kthvalue(int(sparsity * weight.numel())).values)
    scores = net(images)
    weight.copy_(dense)
    return scores


def resampled_coverage(metric, terms, num_samples, rng):
    """Share of samples whose interval holds the delta of the whole population."""
    truth = change_of(metric, (len(terms), *terms.sum(0))).delta
    picks = rng.integers(0, len(terms), (DRAWS, num_samples))
    changes = [change_of(metric, (num_samples, *row)) for row in terms[picks].sum(1).tolist()]
    return float(np.mean([change.ci_low <= truth <= change.ci_high for change in changes]))


@pytest.mark.parametrize(
    "metric", first_of(["top1", "loss", "agreement", "kl", "sqnr"], 2)
)  # top-5 changes too few of ten classes
def test_resampled_real_images(populations, metric):
    before, versions, labels = populations
    rng = np.random.default_rng(0)
    coverages = []
    for scores in versions:
        terms = torch.stack(METRICS[metric].terms(before.double(), scores.double(), labels), 1).numpy()
        for num_samples in (100, 400):
            discrete = metric in ("top1", "top5", "agreement")
            if not discrete or num_samples * np.abs(terms[:, 1]).mean() >= 10:
                coverages.append(resampled_coverage(metric, terms, num_samples, rng))
    assert len(coverages) >= 8
    assert 0.93 <= np.mean(coverages) <= 0.97, coverages
    assert min(coverages) >= 0.9, coverages
