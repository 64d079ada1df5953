"""Confidence intervals for paired per-image differences, computed from sums alone.

What kind of difference decides the interval; each was chosen by its measured coverage (``docs/INTERVALS.md``):

===========================  =================================================================
-1, 0 or 1 (top-1, top-5)    :func:`discordant_interval`, Tango's score
0 or 1 (agreement)           :func:`proportion_interval`, mid-P binomial
any sign (loss)              :func:`mean_interval`, Student's t widened where skewness asks for it
never negative (KL)          :func:`mean_interval`, Hall's correction for skewness
ratio of two sums (SQNR)     :func:`ratio_interval`, delta method on the log scale
any function of all (mAP)    BCa bootstrap over images, :mod:`senseapp.metrics.bootstrap`
===========================  =================================================================

One image says nothing about spread: intervals of means are then as wide as the metric's range.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from scipy.special import betainc, ndtri, stdtrit

from senseapp.core.errors import InvalidInput

Interval = tuple[float, float]

LARGEST_EXPONENT = math.log(sys.float_info.max)  # beyond it float64 overflows


def check_images(num_samples: int, confidence: float) -> None:
    """Raise InvalidInput without images, or for a confidence outside 0.5 to 1."""
    if num_samples < 1:
        raise InvalidInput("Intervals and bounds need at least one image, got none. Choose more images.")
    if not 0.5 <= confidence < 1:
        raise InvalidInput(f"The confidence must be from 0.5 to below 1, got {confidence}. 0.95 is usual.")


def _mid_p_cdf(count: int, total: int, x: float) -> float:
    """Mid-P confidence distribution of a binomial probability after ``count`` successes in ``total``."""
    low = float(betainc(count, total - count + 1, x)) if count else 1.0
    high = float(betainc(count + 1, total - count, x)) if count < total else float(x >= 1)
    return (low + high) / 2


@lru_cache(maxsize=4096)  # many layers share the same few counts
def proportion_interval(count: int, num_samples: int, confidence: float = 0.95) -> Interval:
    """Interval of a probability after ``count`` of ``num_samples``: Clopper-Pearson with mid-P.

    Source: Lancaster (1961), Significance tests in discrete distributions, JASA 56; Brown, Cai and DasGupta
    (2001), Interval estimation for a binomial proportion, Statistical Science 16, section 4.1.

    >>> low, high = proportion_interval(0, 100)  # the rule of three
    >>> (low, round(high, 3))
    (0.0, 0.03)
    """
    check_images(num_samples, confidence)
    tail = (1 - confidence) / 2

    def excess(x: float, probability: float) -> float:
        return _mid_p_cdf(count, num_samples, x) - probability

    low = 0.0 if count == 0 else _root(partial(excess, probability=tail), 0, 1)
    high = 1.0 if count == num_samples else _root(partial(excess, probability=1 - tail), 0, 1)
    return low, high


def discordant_interval(worse: int, better: int, num_samples: int, confidence: float = 0.95) -> Interval:
    """Interval of P(worse) - P(better): the differences that Tango's score test does not reject.

    ``worse`` images are right before and wrong after, ``better`` ones the reverse. The interval excludes 0 just when
    McNemar's test without continuity correction rejects, and is never a point: with no change at all it is
    ±z² / (n + z²), at 95 % about ±3.8 / n.

    Source: Tango (1998), Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design, Statistics in Medicine 17, equations 16 to 18.

    >>> low, high = discordant_interval(12, 2, 50)
    >>> (round(low, 4), round(high, 4))
    (0.0611, 0.3447)
    """
    check_images(num_samples, confidence)
    quantile = -float(ndtri((1 - confidence) / 2))
    return (
        -_score_upper(better, worse, num_samples, quantile),
        _score_upper(worse, better, num_samples, quantile),
    )


def _score_variance(worse: int, better: int, num_samples: int, difference: float) -> float:
    """Variance of one image's change, with P(better) at its maximum likelihood given ``difference``."""
    linear = (2 * num_samples - worse + better) * difference - worse - better
    constant = better * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear**2 + 8 * num_samples * constant))
    likeliest = (root - linear) / (4 * num_samples)
    return max(0.0, 2 * likeliest + difference * (1 - difference))


@lru_cache(maxsize=4096)
def _score_upper(worse: int, better: int, num_samples: int, quantile: float) -> float:
    """Largest difference whose score is at least -``quantile``."""
    estimate = (worse - better) / num_samples
    if num_samples in (worse, better) or worse == better == 0:  # alike images: no variance to start from
        return estimate + (1 - estimate) * quantile**2 / (quantile**2 + num_samples)

    def beyond(difference: float) -> float:
        variance = _score_variance(worse, better, num_samples, difference)
        return difference - estimate - quantile * math.sqrt(variance / num_samples)

    return _root(beyond, estimate, 1, tolerance=1e-12)


def _root(function: Callable[[float], float], low: float, high: float, *, tolerance: float = 2e-12) -> float:
    """Return where ``function``, which rises, crosses zero between ``low`` and ``high``.

    Not by scipy.optimize: it takes half a second to import, for which everybody would wait before the first chart.
    """
    while high - low > tolerance * max(1.0, abs(low), abs(high)):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


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
