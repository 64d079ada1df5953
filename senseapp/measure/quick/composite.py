"""Estimates for all layers and levels, and true passes over a few images for some: the best of both.

A direct mean over few images is unbiased and noisy; an estimate over all images is precise and off by a factor that
depends on the layer, and grows with the damage. Their composite weighs each by the variance of the other. In the
words of small-area estimation: log direct = log estimate + trend + error of the model + error of sampling.

Source: Fay and Herriot (1979), Estimates of income for small places, JASA 74, for the composite; Cochran (1977),
Sampling techniques, sections 8.4 (systematic samples) and 9A (unequal probabilities).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TINY = 1e-30
_KNEES = (1e-3, 1e-2, 1e-1, 1.0)  # nats from where on estimates may be off by a power
_LEAST_FITTED = 5
_SLOPES = (-0.8, 4.0)  # above -1, so that the trend never swaps two estimates
_MODEL_VARIANCE = 0.5  # of the log error of estimates far above a tenth of a nat
_LEAST_SCALE, _LEAST_NOISE = 0.02, 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """Images to make true passes over, ascending, (k,); ``weights`` let sums over them stand for sums over all images.

    ``noise`` is the variance of the weighted estimates of each row, relative to its mean squared, (rows,).
    """

    indices: Tensor
    weights: Tensor
    noise: Tensor


def draw_sample(divergences: Tensor, count: int) -> Sample:
    """Choose ``count`` images that represent all: evenly along the order of their damage, hard ones more often.

    Where few images take nearly all damage, a sample that misses them knows nothing. Nothing is random. ``divergences``
    are estimated, not negative, (rows, N).
    """
    means = divergences.mean(dim=1, keepdim=True)
    importance = _model_variance(means)
    shares = (divergences / means.clamp_min(_TINY) * importance).sum(dim=0) / importance.sum().clamp_min(_TINY)
    chances = _inclusion(shares.clamp_min(1e-6).sqrt(), count)
    order = shares.argsort(stable=True)
    ends = chances[order].cumsum(0)
    points = torch.arange(count, dtype=ends.dtype) + 0.5
    indices = order[torch.searchsorted(ends, points).clamp_max(len(order) - 1)].sort().values
    weights = 1 / chances
    spread = (chances / count * ((divergences - means) * weights * count / len(order)).square()).sum(dim=1)
    noise = (spread / means[:, 0].clamp_min(_TINY).square()).clamp_min(0.25)
    return Sample(indices, weights[indices], noise)


def _inclusion(sizes: Tensor, count: int) -> Tensor:
    """Return chances of at most 1 that sum to ``count``, proportional to ``sizes`` where they are below 1."""
    if count >= len(sizes):
        return torch.ones_like(sizes)
    chances = count * sizes / sizes.sum()
    while bool((chances > 1).any()):
        sure = chances >= 1
        left = count - int(sure.sum())
        chances = torch.where(sure, 1.0, left * sizes / sizes[~sure].sum())
    return chances


def composite(estimates: Tensor, rows: Tensor, measured: Tensor, sample: Sample, num_images: int) -> Tensor:
    """Return better estimates of the mean divergences over all ``num_images``, (rows,), never negative.

    ``estimates``, (rows,), are such means; ``measured``, (m, k), what true passes over the sample found for ``rows``,
    (m,).
    """
    share = sample.weights / sample.weights.sum()
    direct = (measured * share).sum(dim=1)
    rows, measured, direct = (each[direct > 0] for each in (rows, measured, direct))
    if not len(rows):
        return estimates
    count = len(sample.indices)
    missing = 1 - count / num_images  # of the images: a sample of all of them has no error
    seen = ((measured - direct[:, None]) * share).square().sum(dim=1) * count / max(1, count - 1) / direct.square()
    expected = sample.noise[rows] / count
    noise = torch.log1p(expected * missing * float((seen.sum() / expected.sum()).clamp(_LEAST_NOISE, 1.0)))
    model = _model_variance(estimates[rows])
    logs = estimates.clamp_min(_TINY).log()
    errors = direct.log() - logs[rows]
    trend = _trend(estimates, rows, errors, 1 / (model + noise))
    left = errors - trend[rows]
    pull = (model + noise).square().reciprocal() * model
    scale = float((((left.square() - noise) * pull).sum() / (pull * model).sum()).clamp(_LEAST_SCALE, 1.0))
    better = torch.where(estimates > 0, (logs + trend).exp(), 0.0)
    better[rows] = (logs[rows] + trend[rows] + scale * model / (scale * model + noise) * left).exp()
    return better


def _model_variance(estimates: Tensor) -> Tensor:
    """Return the expected variance of the log error of ``estimates``: small ones are second-order, and good."""
    return _MODEL_VARIANCE * estimates / (estimates + 0.1) + 1e-6


def _trend(estimates: Tensor, rows: Tensor, errors: Tensor, precision: Tensor) -> Tensor:
    """Return by how much the log of an estimate of this size is off, for all of ``estimates``: 0 for small ones."""
    best, found = float(precision @ errors.square()), torch.zeros_like(estimates)
    for knee in _KNEES if len(rows) >= _LEAST_FITTED else ():
        shape = torch.log1p(estimates / knee)
        here = shape[rows]
        slope = ((precision * here) @ errors / ((precision * here) @ here + 1)).clamp(*_SLOPES)
        loss = float(precision @ (errors - slope * here).square() + slope.square())
        if loss < best:
            best, found = loss, slope * shape
    return found
