"""One bootstrap over images for figures of all images together, such as average precision or mean IoU.

Both networks answer the same images, so each draw takes the same images for both. The interval is that of Efron (BCa),
which corrects the percentiles of the draws for the bias and for the skewness of the figure.

Sources: Efron (1987), Better bootstrap confidence intervals, JASA 82, equations 4.1, 6.6 and 7.3; Hesterberg (2015),
What teachers should know about the bootstrap, The American Statistician 69, section 3.4 (wider tails for few images).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit  # scipy.stats takes half a second to import

from senseapp.metrics.base import Interval
from senseapp.metrics.bounds import upper_bound_of_share

Floats = NDArray[np.float64]


def image_counts(number: int) -> tuple[Floats, Floats]:
    """Return how often each of ``number`` images counts, (1 + groups + draws, number), and the share of each draw lost.

    The first row has all images, the next leave out one group each (single images, where there are few), the others are
    draws of ``number`` images and one more. That one is on which all is lost: its share of each draw is the second
    array, (draws,).
    """
    groups = min(number, 200)  # of images, of which the jackknife leaves out one at a time
    generator = np.random.default_rng(0)  # so that the same records give the same interval on every machine
    group_of = generator.permutation(number) % groups
    left_out = group_of != np.arange(groups)[:, None]
    # 25 beyond each end of a 95 % interval.
    drawn = generator.multinomial(number + 1, np.full(number + 1, 1 / (number + 1)), size=1000)
    counts = np.concatenate([np.ones((1, number)), left_out, drawn[:, :-1]]).astype(np.float64)
    return counts, drawn[:, -1] / (number + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledDrop:
    """A drop of all images, of all but a group of them, and of draws.

    Attributes:
        number: of the images.
        estimate: the drop of all of them.
        without: of all images but each group, (groups,); NaN where it has no value.
        drawn: of each draw, (draws,), likewise.
        worst: the share of each draw that an additional image has, on which all is lost, (draws,).
        nothing_lost: whether nothing was lost on any image, though something may have changed.
    """

    number: int
    estimate: float
    without: Floats
    drawn: Floats
    worst: Floats
    nothing_lost: bool = False

    @classmethod
    def of(cls, drops: Floats, worst: Floats, number: int) -> ResampledDrop:
        """Return the drops of the rows of :func:`image_counts`."""
        first = len(drops) - len(worst)
        return cls(number=number, estimate=float(drops[0]), without=drops[1:first], drawn=drops[first:], worst=worst)

    def interval(self, confidence: float) -> Interval:
        """Return the BCa interval; without end for one image, and for a drop without a value."""
        known = self.drawn[np.isfinite(self.drawn)]
        if self.number < 2 or math.isnan(self.estimate) or not len(known):
            return -math.inf, math.inf
        below = ((known < self.estimate).mean() + (known <= self.estimate).mean()) / 2
        bias = float(ndtri(np.clip(below, 1 / len(known), 1 - 1 / len(known))))
        tail = self._tail(confidence)
        shifted = bias + np.array([-tail, tail])
        levels = ndtr(bias + shifted / np.maximum(1 - self._acceleration() * shifted, 1e-9))
        low, high = np.quantile(known, levels)
        return min(float(low), self.estimate), max(float(high), self.estimate)

    def interval_of_share(self, confidence: float, *, gains: bool) -> Interval:
        """Return the interval of a drop of a share, which with ``gains`` may be below 0.

        Where nothing was lost on any image, draws say nothing of images that lose all: the upper end is at least that
        of a share of images of which none was lost. Where nothing changed at all, the same holds of gains.
        """
        low, high = self.interval(confidence)
        unseen = upper_bound_of_share(0, self.number, confidence)
        if low == high:
            low, high = -unseen, unseen
        elif self.nothing_lost:
            high = max(high, unseen)
        return max(-1.0 if gains else 0.0, low), min(1.0, high)

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
        tail = self._tail(2 * confidence - 1)
        level = float(ndtr(tail / max(1 - self._acceleration() * tail, 1e-9)))
        return float(np.quantile(known, max(confidence, level), method="higher"))

    def _tail(self, confidence: float) -> float:
        """Return the normal quantile of a two-sided interval that is as wide as one of Student's t."""
        number = max(2, self.number)
        return float(stdtrit(number - 1, (1 + confidence) / 2)) * math.sqrt(number / (number - 1))

    def _acceleration(self) -> float:
        """Return a sixth of the skewness of the drop, from the jackknife."""
        known = self.without[np.isfinite(self.without)]
        influence = known.mean() - known if len(known) else np.zeros(1)
        square = float((influence**2).sum())
        return float((influence**3).sum()) / (6 * square**1.5) if square > 0 else 0.0
