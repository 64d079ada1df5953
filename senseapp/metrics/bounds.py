"""One-sided upper confidence bounds of a loss on new images, and how many images a bound needs.

An interval of :mod:`senseapp.metrics.intervals` covers on average; a bound is for promises, so it exceeds the true loss
with at least its confidence, for any number of images. Which bound a metric has, and measured coverage:
``docs/guarantee.md``. Those of figures of all images are in :class:`senseapp.metrics.intervals.ResampledDrop`.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv  # scipy.stats takes half a second to import

from senseapp.core.errors import InvalidInput

Floats = NDArray[np.float64]

LARGEST_EXPONENT = math.log(sys.float_info.max)  # beyond it float64 overflows
_BETS, _STAKES = np.array([0.98, 0.5, 0.2]), np.array([0.5, 0.25, 0.25])  # of the capital that each share is put on
# Share of the error that the first test has: most searches end there. Of 0.6, 0.75, 0.85 and 0.9 in 400 simulated
# deployments (seed 7) it offered most files (``python -m benchmarks.promise`` simulates with it).
_FIRST = 0.85


@dataclass(slots=True, kw_only=True)
class TestSequence:
    """Tests that follow each other, of which any is wrong with at most the probability ``error``.

    Neither their number nor where they end is fixed in advance. The first test has 85 % of the error, test number i
    later 0.15 error / (i (i - 1)), and each that of the test before it where that one passed: where tests go from
    mild to strong, nearly all of the error. What is tested may depend on outcomes of earlier tests, not on the images
    otherwise.

    Source: Tian and Ramdas (2021), Online control of the familywise error rate, Statistical Methods in Medical Research
    30, section 3 (online fallback); Angelopoulos, Bates, Candès, Jordan and Lei (2025), Learn then Test: Calibrating
    predictive algorithms to achieve risk control, Annals of Applied Statistics 19 (tests of candidates by bounds).

    >>> tests = TestSequence(error=0.08)
    >>> [tests.test(lambda error: round(error, 3) >= 0.068), round(tests.next_error, 3)]
    [True, 0.074]
    """

    __test__ = False  # no test of pytest

    error: float
    done: int = 0
    passed_on: float = 0.0

    @property
    def next_error(self) -> float:
        """The probability with which the next test may be wrong."""
        share = (1 - _FIRST) / (self.done * (self.done + 1)) if self.done else _FIRST
        return share * self.error + self.passed_on

    def test(self, holds: Callable[[float], bool]) -> bool:
        """Return whether the next test passes: whether what is claimed ``holds`` but for such an error."""
        error = self.next_error
        passes = holds(error)
        self.done, self.passed_on = self.done + 1, error if passes else 0.0
        return passes


def check_images(num_samples: int, confidence: float) -> None:
    """Raise InvalidInput without images, or for a confidence outside 0.5 to 1."""
    if num_samples < 1:
        raise InvalidInput("Intervals and bounds need at least one image, got none. Choose more images.")
    if not 0.5 <= confidence < 1:
        raise InvalidInput(f"The confidence must be from 0.5 to below 1, got {confidence}. 0.95 is usual.")


def upper_bound_of_share(changed: int, images: int, confidence: float = 0.95) -> float:
    """Return the upper bound of a probability after ``changed`` of ``images``: Clopper-Pearson, one-sided.

    Source: Clopper and Pearson (1934), The use of confidence or fiducial limits, Biometrika 26.

    Raises:
        InvalidInput: no images, more changed than there are, or a confidence outside 0.5 to 1.

    >>> [round(upper_bound_of_share(*each), 4) for each in ((0, 300), (3, 200), (200, 200))]
    [0.0099, 0.0383, 1.0]
    """
    check_images(images, confidence)
    if not 0 <= changed <= images:
        raise InvalidInput(f"From 0 to {images} of {images} images can change, got {changed}.")
    return 1.0 if changed == images else float(betaincinv(changed + 1, images - changed, confidence))


@lru_cache(maxsize=4096)
def upper_bound_of_net_share(worse: int, better: int, images: int, confidence: float = 0.95) -> float:
    """Return the upper bound of P(worse) - P(better) after so many of ``images``: of a drop in accuracy.

    It is the quantile of the difference of the shares of worse and of better images with one more worse image, under a
    flat Dirichlet distribution; where no image gets better, that is Clopper-Pearson's bound.

    Source: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable, Mathematical Methods of Statistics 14; Fay, Proschan and Brittain (2015), Combining one-sample confidence
    procedures for inference in the two-sample case, Biometrics 71 (the same bound by melding).

    >>> round(upper_bound_of_net_share(3, 0, 200), 4) == round(upper_bound_of_share(3, 200), 4)
    True
    """
    changed = worse + better
    if not better:
        return upper_bound_of_share(worse, images, confidence)
    check_images(images, confidence)
    if min(worse, better) < 0 or changed > images:
        raise InvalidInput(f"From 0 to {images} of {images} images can change, got {worse} and {better}.")
    middles = (np.arange(128) + 0.5) / 128
    direction = 2 * betaincinv(worse + 1, better, middles) - 1  # of a change, from -1 to 1

    def below(net: float) -> float:
        """Return the probability that the difference is at most ``net``."""
        if changed == images:
            return float((direction <= net).mean())
        share = np.clip(np.divide(net, direction, out=np.ones_like(direction), where=direction != 0), 0, 1)
        inside = betainc(changed + 1, images - changed, share)
        if net < 0:
            return float(np.where(direction < 0, 1 - inside, 0.0).mean())
        return float(np.where(direction > 0, inside, 1.0).mean())

    return _last(lambda net: below(net) < confidence, -1.0, 1.0)


def upper_bound_of_sums(
    images: int, sums: tuple[float, float, float], low: float, high: float, confidence: float = 0.95
) -> float:
    """Return the upper bound of the mean of independent values from ``low`` to ``high``, one of each image.

    ``sums`` are those of the values, of their squares and of their cubes: see :func:`_capital`.
    """
    check_images(images, confidence)
    if not all(map(math.isfinite, sums)):
        return high
    error, span = 1 - confidence, high - low
    first, second, third = sums
    scaled = (
        min(float(images), max(0.0, (first - images * low) / span)),
        (second - 2 * low * first + images * low**2) / span**2,
        (third - 3 * low * second + 3 * low**2 * first - images * low**3) / span**3,
    )
    return low + span * _last(lambda each: _capital(images, scaled, each) < 1 / error, scaled[0] / images, 1.0)


def _capital(images: int, sums: tuple[float, float, float], expected: float) -> float:
    """Return the least capital that bets against an expectation of at least ``expected`` have won, from 1 on.

    Each image multiplies the capital by 1 + b (expected - value), with b = share / (1 - expected) for a share of the
    capital at stake; the capital is divided between three shares. If the expectation of the values, from 0 to 1, is at
    least ``expected``, that of the capital is at most 1, so it exceeds 1 / error with at most the probability error.

    Source: Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting, Journal of the
    Royal Statistical Society B 86, section 4 (a fixed bet instead of a predicted one).
    """
    if expected >= 1:
        return math.inf
    bet = _BETS / (1 - expected)
    first, second, third = sums
    powers = (
        bet * (images * expected - first),
        bet**2 * (images * expected**2 - 2 * expected * first + second),
        bet**3 * (images * expected**3 - 3 * expected**2 * first + 3 * expected * second - third),
    )
    logarithms = _least_sum_of_logarithms(images, powers, -_BETS, bet * expected)
    return float(np.exp(np.minimum(logarithms, LARGEST_EXPONENT)) @ _STAKES)


def _least_sum_of_logarithms(count: int, powers: tuple[Floats, Floats, Floats], start: Floats, end: Floats) -> Floats:
    """Return a lower bound of the sum of log(1 + y) over ``count`` values of y from ``start`` to ``end``, above -1.

    ``powers`` are the sums of y, y^2 and y^3. The bound is the sum of a cubic that meets the logarithm at both ends and
    touches it in between, at the place that gives most. By the remainder of interpolation the logarithm is above it
    by f(z) (y - start) (y - touch)^2 (y - end) / 24 for some z, where the fourth derivative f is negative.
    """
    low, high = start[:, None], end[:, None]
    touch = low + (high - low) * (np.arange(32) + 0.5) / 32
    at_low, at_touch, at_high = np.log1p(low), np.log1p(touch), np.log1p(high)
    slope, tangent, last_slope = (
        (at_touch - at_low) / (touch - low),
        1 / (1 + touch),
        (at_high - at_touch) / (high - touch),
    )
    bend, last_bend = (tangent - slope) / (touch - low), (last_slope - tangent) / (high - touch)
    twist = (last_bend - bend) / (high - low)  # divided differences of Newton's form at low, touch, touch, high
    sum_1, sum_2, sum_3 = (power[:, None] for power in powers)
    newton_1 = sum_1 - count * low
    newton_2 = sum_2 - (low + touch) * sum_1 + count * low * touch
    newton_3 = sum_3 - (low + 2 * touch) * sum_2 + touch * (touch + 2 * low) * sum_1 - count * low * touch**2
    sums: Floats = (count * at_low + slope * newton_1 + bend * newton_2 + twist * newton_3).max(axis=1)
    return sums


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the end, rounded up, of where ``holds`` is true, from ``low`` on; ``high`` where it always is."""
    for _ in range(40):  # halvings of 1 or 2
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


@lru_cache(maxsize=4096)
def images_needed(share: float, confidence: float = 0.95, *, rate: float = 0.0) -> int | None:
    """Return about how many images promise at most ``share`` where a share of ``rate`` of them changes.

    None where no number does, as ``rate`` is no smaller or nearly as large.

    Raises:
        InvalidInput: ``share`` is not between 0 and 1, or needs more images than can be counted.

    >>> [images_needed(0.01), images_needed(0.05), images_needed(0.05, rate=0.02)]
    [299, 59, 181]
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"A bound is above 0 and at most 1, got {share}.")
    if 0 < rate >= share:
        return None

    def promises(images: int) -> bool:
        return upper_bound_of_share(math.ceil(rate * images - 1e-9), images, confidence) <= share

    high = 1
    while not promises(high):
        high *= 2
        if high > 2**40 and rate > 0:
            return None
        if high > 2**40:  # no set is as large
            raise InvalidInput(f"No number of images promises at most {share:g}.")
    return bisect_left(range(high), True, lo=high // 2, key=promises)


@lru_cache(maxsize=4096)
def most_changed_within(share: float, images: int, confidence: float = 0.95) -> int | None:
    """Return how many of ``images`` may change at most for ``share`` to be promised; None where none may.

    >>> [most_changed_within(0.05, images) for images in (58, 59, 200)]
    [None, 0, 4]
    """
    check_images(images, confidence)
    fitting = bisect_right(range(images + 1), share, key=lambda count: upper_bound_of_share(count, images, confidence))
    return fitting - 1 if fitting else None
