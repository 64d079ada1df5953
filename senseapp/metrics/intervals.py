"""Confidence intervals for paired per-image differences, computed from sums alone.

What kind of difference decides the interval; each was chosen by its measured coverage (``docs/INTERVALS.md``):

===========================  =================================================================
-1, 0 or 1 (top-1, top-5)    :func:`discordant_interval`, Bonett and Price
0 or 1 (agreement)           :func:`proportion_interval`, Clopper and Pearson
any sign (loss)              :func:`mean_interval`, Student's t widened where skewness asks for it
never negative (KL)          :func:`mean_interval`, Hall's correction for skewness
ratio of two sums (SQNR)     :func:`ratio_interval`, delta method on the log scale
any function of all (mAP)    BCa bootstrap over images, :mod:`senseapp.metrics.bootstrap`
===========================  =================================================================

One image says nothing about spread: intervals of means are then as wide as the metric's range.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtri, stdtrit

from senseapp.metrics.bounds import (
    LARGEST_EXPONENT,
    check_images,
    upper_bound_of_share,
)

Interval = tuple[float, float]


@lru_cache(maxsize=4096)  # many layers share the same few counts
def proportion_interval(count: int, num_samples: int, confidence: float = 0.95) -> Interval:
    """Interval of a probability after ``count`` of ``num_samples``: two exact bounds, of half the error each.

    Source: Clopper and Pearson (1934), The use of confidence or fiducial limits, Biometrika 26.

    >>> low, high = proportion_interval(0, 100)
    >>> (low, round(high, 3))
    (0.0, 0.036)
    """
    check_images(num_samples, confidence)
    each = (1 + confidence) / 2
    low = 1 - upper_bound_of_share(num_samples - count, num_samples, each)
    return low, upper_bound_of_share(count, num_samples, each)


def discordant_interval(worse: int, better: int, num_samples: int, confidence: float = 0.95) -> Interval:
    """Interval of P(worse) - P(better), from the shares of ``num_samples`` images and two more, one of each kind.

    ``worse`` images are right before and wrong after, ``better`` ones the reverse. With no change at all the interval
    is about ±2.8 / n at 95 %.

    Source: Bonett and Price (2012), Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data, Journal of Educational and Behavioral Statistics 37.

    >>> low, high = discordant_interval(12, 2, 50)
    >>> (round(low, 4), round(high, 4))
    (0.0509, 0.3337)
    """
    check_images(num_samples, confidence)
    shares = (worse + 1) / (num_samples + 2), (better + 1) / (num_samples + 2)
    difference, estimate = shares[0] - shares[1], (worse - better) / num_samples
    margin = -float(ndtri((1 - confidence) / 2)) * math.sqrt((sum(shares) - difference**2) / (num_samples + 2))
    return max(-1.0, min(estimate, difference - margin)), min(1.0, max(estimate, difference + margin))


def _central(num_samples: int, sums: tuple[float, float, float]) -> tuple[float, float, float]:
    """Mean, standard error of the mean, and skewness (third central moment over the cubed deviation)."""
    mean, square, cube = (total / num_samples for total in sums)
    variance = square - mean**2
    if variance <= 1e-12 * square:  # float64 cancellation, not spread
        return mean, 0.0, 0.0
    skewness = (cube - 3 * mean * square + 2 * mean**3) / variance**1.5
    largest = (num_samples - 2) / math.sqrt(num_samples - 1)  # of any sample; beyond it lies rounding only
    return mean, math.sqrt(variance / (num_samples - 1)), min(max(skewness, -largest), largest)


def _t_quantile(num_samples: int, confidence: float) -> float:
    return float(stdtrit(num_samples - 1, (1 + confidence) / 2))


def _hall(mean: float, error: float, skewness: float, num_samples: int, quantile: float) -> Interval:
    """Invert Hall's monotone cubic transformation of the t statistic at ±``quantile``."""
    third = skewness / (3 * math.sqrt(num_samples))
    if abs(third) < 1e-9:
        return mean - quantile * error, mean + quantile * error

    def inverse(x: float) -> float:
        return (float(np.cbrt(1 + 3 * third * (x - third / 2))) - 1) / third

    return mean - error * inverse(quantile), mean - error * inverse(-quantile)


def mean_interval(
    num_samples: int,
    sums: tuple[float, float, float],
    confidence: float = 0.95,
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> Interval:
    """Interval of the mean of values from ``low`` to ``high``, by the sums of the values, their squares and cubes.

    Values of any sign get the hull of Student's t and Hall's interval: per-image losses have two long tails and a
    skewness of either sign. Student's t alone falls short where one tail dominates, Hall's correction alone where the
    sample's skewness misleads; their hull does not. Values that cannot be negative get Hall's interval. The interval is
    a point if all values are equal, and the whole range for one image.

    Source: Hall (1992), On the removal of skewness by transformation, JRSS B 54, section 2.
    """
    check_images(num_samples, confidence)
    if not math.isfinite(sums[0]):  # one image with an infinite difference makes the mean infinite for certain
        return sums[0], sums[0]
    if num_samples == 1 or not all(map(math.isfinite, sums)):
        return low, high
    mean, error, skewness = _central(num_samples, sums)
    quantile = _t_quantile(num_samples, confidence)
    ends = _hall(mean, error, skewness, num_samples, quantile)
    if low < 0:
        ends = min(ends[0], mean - quantile * error), max(ends[1], mean + quantile * error)
    return max(low, ends[0]), min(high, ends[1])


def ratio_interval(
    num_samples: int,
    sums: tuple[float, float],
    products: tuple[float, float, float],
    confidence: float = 0.95,
) -> Interval:
    """Interval of mean(e) / mean(s) for positive s and e that cannot be negative, on the log scale.

    ``sums`` are those of s and e, ``products`` of s², e² and s e. The interval is never negative, (0, 0) if every e is
    0, and (0, inf) for one image.

    Source: Cochran (1977), Sampling Techniques, 3rd ed., equation 6.13, without the finite population factor;
    the logarithm by the delta method.
    """
    check_images(num_samples, confidence)
    signal, error = sums
    if error == 0 or not math.isfinite(error):
        return error, error
    if signal == 0:
        return math.inf, math.inf
    if num_samples == 1 or not all(map(math.isfinite, products)):
        return 0.0, math.inf
    ratio = error / signal
    residual = products[1] - 2 * ratio * products[2] + ratio**2 * products[0]
    relative = math.sqrt(max(0.0, residual) * num_samples / (num_samples - 1)) / error
    margin = _t_quantile(num_samples, confidence) * relative
    if margin > LARGEST_EXPONENT:
        return 0.0, math.inf
    return ratio * math.exp(-margin), ratio * math.exp(margin)
