"""One-sided upper confidence bounds of a loss on new images, and how many images a bound needs.

An interval of :mod:`senseapp.metrics.intervals` covers on average; a bound is for promises, so it exceeds the true loss
with at least its confidence, for any number of images. Which bound a metric has, and measured coverage:
``docs/guarantee.md``. Those of figures of all images are in :class:`senseapp.metrics.intervals.ResampledDrop`.
"""

import math
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput

Floats = NDArray[np.float64]

LARGEST_EXPONENT = math.log(sys.float_info.max)  # beyond it float64 overflows
_BETS, _STAKES = np.array([0.98, 0.5, 0.2]), np.array([0.5, 0.25, 0.25])  # of the capital that each share is put on
_MOST_IMAGES = 2**40  # no set is as large
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
    >>> tests.add(passes=True)
    >>> round(tests.next_error, 3)
    0.074
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

    def add(self, passes: bool) -> None:
        """Add the outcome of the next test: whether what is claimed holds but for :attr:`next_error`."""
        self.done, self.passed_on = self.done + 1, self.next_error if passes else 0.0


def check_images(num_samples: int, confidence: float) -> None:
    """Raise InvalidInput without images, or for a confidence outside 0.5 to 1."""
    if num_samples < 1:
        raise InvalidInput("Intervals and bounds need at least one image, got none. Choose more images.")
    if not 0.5 <= confidence < 1:
        raise InvalidInput(f"The confidence must be from 0.5 to below 1, got {confidence}. 0.95 is usual.")


def upper_bound_of_share(changed: int, images: int, confidence: float = 0.95) -> float:
    """Return the upper bound of a probability after ``changed`` of ``images``: Clopper-Pearson, one-sided.

    InvalidInput for no images, more changed than there are, or a confidence outside 0.5 to 1.

    Source: Clopper and Pearson (1934), The use of confidence or fiducial limits, Biometrika 26.

    >>> [round(upper_bound_of_share(*each), 4) for each in ((0, 300), (3, 200), (200, 200))]
    [0.0099, 0.0383, 1.0]
    """
    from scipy.special import betaincinv  # records are read where no scipy is needed; scipy.stats takes half a second

    check_images(images, confidence)
    if not 0 <= changed <= images:
        raise InvalidInput(f"From 0 to {images} of {images} images can change, got {changed}.")
    return 1.0 if changed == images else float(betaincinv(changed + 1, images - changed, confidence))


@lru_cache(maxsize=4096)
def upper_bound_of_net_share(worse: int, better: int, images: int, confidence: float = 0.95) -> float:
    """Return the upper bound of P(worse) - P(better) after so many of ``images``: of a drop in accuracy.

    It is the quantile of the difference of the shares of worse and of better images with one more worse image, under a
    flat Dirichlet distribution, over 512 by 512 equally likely values of the share that changes and of the direction of
    a change; where no image gets better, that is Clopper-Pearson's bound.

    Source: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable, Mathematical Methods of Statistics 14; Fay, Proschan and Brittain (2015), Combining one-sample confidence
    procedures for inference in the two-sample case, Biometrics 71 (the same bound by melding).

    >>> round(upper_bound_of_net_share(3, 0, 200), 4) == round(upper_bound_of_share(3, 200), 4)
    True
    """
    from scipy.special import betaincinv

    if not better:
        return upper_bound_of_share(worse, images, confidence)
    check_images(images, confidence)
    changed = worse + better
    if min(worse, better) < 0 or changed > images:
        raise InvalidInput(f"From 0 to {images} of {images} images can change, got {worse} and {better}.")
    middles = (np.arange(512) + 0.5) / 512
    direction = 2 * betaincinv(worse + 1, better, middles) - 1  # from -1 to 1
    share = betaincinv(changed + 1, images - changed, middles) if changed < images else np.ones(1)
    return float(np.quantile(np.outer(direction, share), confidence))


def upper_bound_of_sums(
    images: int, sums: tuple[float, float], low: float, high: float, confidence: float = 0.95
) -> float:
    """Return the upper bound of a mean of values from ``low`` to ``high``, by the sums of them and of their squares."""
    check_images(images, confidence)
    if not all(map(math.isfinite, sums)):
        return high
    span = high - low
    mean = min(1.0, max(0.0, (sums[0] / images - low) / span))
    square = (sums[1] - 2 * low * sums[0] + images * low**2) / images / span**2
    below, above = mean, 1.0
    for _ in range(40):  # halvings of 1
        middle = (below + above) / 2
        is_open = _capital(images, mean, square, middle) < 1 / (1 - confidence)
        below, above = (middle, above) if is_open else (below, middle)
    return low + span * above


def _capital(images: int, mean: float, square: float, expected: float) -> float:
    """Return the least capital that bets against an expectation of at least ``expected`` have won, from 1 on.

    Each image multiplies the capital by 1 + y with y = b (expected - value) and b = share / (1 - expected) for a share
    of the capital at stake; the capital is divided between three shares. If the expectation of the values, from 0 to 1,
    is at least ``expected``, that of the capital is at most 1, so it exceeds 1 / error with at most the probability
    error. Its logarithm is bounded by the means of the values and of their squares: a parabola that meets log(1 + y) at
    y = -share and touches it at any larger y lies below it, and of 32 such places the best is taken.

    Source: Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting, Journal of the
    Royal Statistical Society B 86, section 4 (a fixed bet instead of a predicted one).
    """
    bet = (_BETS / (1 - expected))[:, None]  # (3, 1)
    gain, gain_square = bet * (expected - mean), bet**2 * (expected**2 - 2 * expected * mean + square)
    start = -_BETS[:, None]
    touch = start + (bet * expected - start) * (np.arange(32) + 0.5) / 32  # (3, 32)
    slope = 1 / (1 + touch)
    bend = (np.log1p(start) - np.log1p(touch) + (touch - start) * slope) / (touch - start) ** 2
    logarithms = np.log1p(touch) + slope * (gain - touch) + bend * (gain_square - 2 * touch * gain + touch**2)
    return float(np.exp(np.minimum(images * logarithms.max(axis=1), LARGEST_EXPONENT)) @ _STAKES)


@lru_cache(maxsize=4096)
def images_needed(share: float, confidence: float = 0.95, *, rate: float = 0.0) -> int | None:
    """Return about how many images promise at most ``share`` where a share of ``rate`` of them changes.

    None where no number does, as ``rate`` is no smaller or nearly as large; InvalidInput for a ``share`` that is not
    between 0 and 1, or needs more images than can be counted.

    >>> [images_needed(0.01), images_needed(0.05), images_needed(0.05, rate=0.02)]
    [299, 59, 181]
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"A bound is above 0 and at most 1, got {share}.")
    if 0 < rate >= share:
        return None

    def promises(images: int) -> bool:
        return upper_bound_of_share(math.ceil(rate * images - 1e-9), images, confidence) <= share

    needed = 1 + bisect_left(range(1, _MOST_IMAGES), True, key=promises)
    if needed == _MOST_IMAGES and not rate:
        raise InvalidInput(f"No number of images promises at most {share:g}.")
    return needed if needed < _MOST_IMAGES else None


@lru_cache(maxsize=4096)
def most_changed_within(share: float, images: int, confidence: float = 0.95) -> int | None:
    """Return how many of ``images`` may change at most for ``share`` to be promised; None where none may.

    >>> [most_changed_within(0.05, images) for images in (58, 59, 200)]
    [None, 0, 4]
    """
    check_images(images, confidence)
    fitting = bisect_right(range(images + 1), share, key=lambda count: upper_bound_of_share(count, images, confidence))
    return fitting - 1 if fitting else None
