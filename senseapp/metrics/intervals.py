"""Confidence intervals for paired per-image differences, computed from sums, and of figures of all images together.

What kind of difference decides the interval; each was chosen by its measured coverage (the table of *Choice* in
``docs/INTERVALS.md``). One image says nothing about spread: intervals of means are then as wide as the metric's range.

The bootstrap (BCa) serves figures of all images together, such as average precision or mean IoU. Both networks answer
the same images, so each draw takes the same images for both.

Sources of the bootstrap: Efron (1987), Better bootstrap confidence intervals, JASA 82, equations 4.1, 6.6 and 7.3;
Hesterberg (2015), What teachers should know about the bootstrap, The American Statistician 69, section 3.4 (wider tails
for few images).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Self

import numpy as np

from senseapp.metrics.bounds import LARGEST_EXPONENT, Floats, check_images, upper_bound_of_share

Interval = tuple[float, float]
_NORMAL = NormalDist()


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
    margin = -_NORMAL.inv_cdf((1 - confidence) / 2) * math.sqrt((sum(shares) - difference**2) / (num_samples + 2))
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
    from scipy.special import stdtrit  # records are read where no scipy is needed

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
    num_samples: int, sums: tuple[float, float], products: tuple[float, float, float], confidence: float = 0.95
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


# ---- figures of all images together


def image_counts(number: int) -> tuple[Floats, Floats]:
    """Return how often each of ``number`` images counts, (1 + groups + draws, number), and the share of each draw lost.

    The first row has all images, the next leave out one group each (single images, where there are few), the others are
    draws of ``number`` images and one more. That one is on which all is lost: its share of each draw is the second
    array, (draws,).
    """
    groups = min(number, 200)  # of images, of which the jackknife leaves out one at a time
    generator = np.random.default_rng(0)  # so that the same records give the same interval on every machine
    left_out = (generator.permutation(number) % groups) != np.arange(groups)[:, None]
    # 25 beyond each end of a 95 % interval.
    drawn = generator.multinomial(number + 1, np.full(number + 1, 1 / (number + 1)), size=1000)
    counts = np.concatenate([np.ones((1, number)), left_out, drawn[:, :-1]]).astype(np.float64)
    return counts, drawn[:, -1] / (number + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledDrop:
    """A drop of a ``number`` of images: of all, of all but each group, (groups,), and of draws, (draws,).

    ``worst`` is the share of each draw that an additional image has, on which all is lost, (draws,). Where
    ``nothing_lost`` on any image, something may have changed. A drop without a value is NaN.
    """

    number: int
    estimate: float
    without: Floats
    drawn: Floats
    worst: Floats
    nothing_lost: bool = False

    @classmethod
    def of(cls, drops: Floats, worst: Floats, number: int) -> Self:
        """Return the drops of the rows of :func:`image_counts`."""
        first = len(drops) - len(worst)
        return cls(number=number, estimate=float(drops[0]), without=drops[1:first], drawn=drops[first:], worst=worst)

    def interval(self, confidence: float) -> Interval:
        """Return the BCa interval; without end for one image, and for a drop without a value."""
        known = self.drawn[np.isfinite(self.drawn)]
        if self.number < 2 or math.isnan(self.estimate) or not len(known):
            return -math.inf, math.inf
        below = ((known < self.estimate).mean() + (known <= self.estimate).mean()) / 2
        bias = _NORMAL.inv_cdf(min(max(below, 1 / len(known)), 1 - 1 / len(known)))
        tail = self._tail(confidence)
        low, high = np.quantile(known, [self._level(bias + each, bias) for each in (-tail, tail)])
        return min(float(low), self.estimate), max(float(high), self.estimate)

    def upper_bound(self, confidence: float) -> float:
        """Return the percentile of draws of the images and one more, on which all is lost; the higher of two draws.

        Without that image, images that all stay as they are would promise that no other one changes. Of a share of
        images it is Clopper and Pearson's bound, with multinomial in place of Dirichlet weights. The percentile is
        moved outward for the skewness of the drop, as that of the interval: without it, bounds of mean IoU where images
        differ much in size held in .91 to .92 of the simulated samples.

        Source: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a
        nonnegative variable, Mathematical Methods of Statistics 14.
        """
        losses = (1 - self.worst) * self.drawn + self.worst
        known = losses[np.isfinite(losses)]
        if not len(known):
            return math.nan
        level = self._level(self._tail(2 * confidence - 1))
        return float(np.quantile(known, max(confidence, level), method="higher"))

    def _tail(self, confidence: float) -> float:
        """Return the normal quantile of a two-sided interval that is as wide as one of Student's t."""
        number = max(2, self.number)
        return _t_quantile(number, confidence) * math.sqrt(number / (number - 1))

    def _level(self, end: float, bias: float = 0.0) -> float:
        """Return the share of draws below a normal ``end``, moved for the skewness of the drop by the jackknife."""
        known = self.without[np.isfinite(self.without)]
        influence = known.mean() - known if len(known) else np.zeros(1)
        square = float((influence**2).sum())
        acceleration = float((influence**3).sum()) / (6 * square**1.5) if square > 0 else 0.0
        return _NORMAL.cdf(bias + end / max(1 - acceleration * end, 1e-9))
