"""Interval of a drop of a metric of all images together, from what it is without each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from senseapp.metrics.intervals import Interval, PowerMeans, gamma_interval

_GROUPS = 256  # of images, of which the jackknife leaves out one at a time
_SEED = 0  # so that the same records give the same groups on every machine
_ROUNDING = 1e-12  # a difference below it is float64 cancellation


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What images say about how much worse a metric is after compression.

    Attributes:
        estimate: of the drop.
        smooth: the same without rounding.
        rounded: by how much rounding adds to ``smooth`` on average.
        without: the smooth drop of all images but each group, (groups,); NaN where it has no value.
        smallest: mean, mean square and mean cube of what one more loss of the smallest kind would take.
        shares: what each image would take if all were lost there, (N,).
        losing: images on which something was lost, (N,).
        rounding: variance of what the rounding of the metric to a few levels adds.
        number: of the images that say something.
    """

    estimate: float
    smooth: float
    rounded: float = 0.0
    without: NDArray[np.float64]
    smallest: PowerMeans
    shares: NDArray[np.float64]
    losing: NDArray[np.bool_]
    rounding: float = 0.0
    number: int


def jackknife_weights(number: int) -> NDArray[np.float64]:
    """Return how often each of ``number`` images counts where each group is left out, (groups, number).

    Groups are single images up to ``_GROUPS``, and random ones of like sizes beyond.
    """
    groups = min(number, _GROUPS)
    group_of = np.arange(number) % groups
    if groups < number:
        np.random.default_rng(_SEED).shuffle(group_of)
    weights: NDArray[np.float64] = (group_of != np.arange(groups)[:, None]).astype(np.float64)
    return weights


def jackknife_interval(drop: Drop, confidence: float, *, gains: bool) -> Interval:
    """Return the interval of a Poisson number with the moments of a jackknife over images, and one more loss.

    Where ``gains``, one more gain is possible as well. The jackknife's bias moves the end that it moves outward.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 11, the jackknife; for the rest
    :func:`~senseapp.metrics.intervals.gamma_interval`.
    """
    finite = np.isfinite(drop.without)
    known, groups = drop.without[finite], int(finite.sum())
    number = min(groups, drop.number)
    if math.isnan(drop.estimate):
        return math.nan, math.nan
    if number < 2:
        return drop.estimate - 1, drop.estimate + 1
    influences = (known.mean() - known) * (groups - 1)
    influences[abs(influences) < _ROUNDING] = 0
    variance = float((influences**2).sum()) / (groups * (groups - 1))
    bias = (groups - 1) * float(known.mean() - drop.smooth)
    low, high = gamma_interval(
        drop.smooth + drop.rounded,
        variance + drop.rounding if variance else 0.0,  # what no image changes is rounded alike before and after
        float((influences**3).sum()) / groups**3,
        number,
        confidence,
        losses=_next_losses(influences / groups, drop, finite),
        gain=drop.smallest if gains else (0.0, 0.0, 0.0),
    )
    return min(low - max(0.0, bias), drop.estimate), max(high + max(0.0, -bias), drop.estimate)


def _next_losses(added: NDArray[np.float64], drop: Drop, finite: NDArray[np.bool_]) -> list[tuple[float, PowerMeans]]:
    """Return two kinds of one more loss, each with its probability: as large a share of an image as on others, or all.

    ``added`` is what groups of images, those that are ``finite``, add to the drop. After k images on which something
    was lost, all is lost with a probability of exp(-k): as likely as it is that none lost all if such images were as
    frequent as those, by Poisson's distribution. Nothing is less than an object.
    """
    members = (1 - jackknife_weights(len(drop.shares)))[finite]
    losing = members @ drop.losing > 0
    unlike = math.exp(-int(losing.sum()))
    whole = _power_means(drop.shares)
    like_others = _loss_of_an_image(np.where(losing, added, 0.0).clip(0), members @ drop.shares, whole)
    return [(1 - unlike, _larger(drop.smallest, like_others)), (unlike, _larger(drop.smallest, whole))]


def _larger(one: PowerMeans, other: PowerMeans) -> PowerMeans:
    mean, square, cube = map(max, one, other)
    return mean, square, cube


def _loss_of_an_image(added: NDArray[np.float64], shares: NDArray[np.float64], whole: PowerMeans) -> PowerMeans:
    """Return mean, mean square and mean cube of what an image takes where as much of it is lost as of others.

    ``added`` is what groups of images add to the drop, by which they count, and ``shares`` what they would add if all
    were lost there. ``whole`` says the same of single images.
    """
    if not added.any():
        return 0.0, 0.0, 0.0
    lost = np.divide(added, shares, out=(added > 0).astype(np.float64), where=shares > 0).clip(0, 1)
    mean, square, cube = (float(added @ lost**power / added.sum()) * whole[power - 1] for power in (1, 2, 3))
    return mean, square, cube


def _power_means(values: NDArray[np.float64]) -> PowerMeans:
    mean, square, cube = (float((values**power).mean()) for power in (1, 2, 3))
    return mean, square, cube
