"""From how many expected losses on an interval can cover 93 to 97 % at all."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.stats import poisson

from senseapp.metrics.intervals import PowerMeans, gamma_interval

_COUNTS = 150
_MANY = 10**9  # images, so that the tails are those of a normal distribution
_BESIDE = 1e-7  # of an end of an interval, where coverage jumps


@lru_cache(maxsize=2)
def least_expected(low: float, high: float, *, whole: bool) -> float:
    """Return from which mean on the 95 % interval of a Poisson number covers a share from ``low`` to ``high``.

    A number of losses takes whole values, so that coverage jumps wherever an end of an interval is passed, the more the
    fewer are expected: Brown, Cai and DasGupta (2001), Interval estimation for a binomial proportion, Statistical
    Science 16, 101-133. Where ``whole``, the next loss may be far larger than those seen, as for an image that loses
    all: :func:`~senseapp.metrics.jackknife.jackknife_interval`.
    """
    ends = np.array([_interval(count, whole=whole) for count in range(_COUNTS)])
    means = np.unique(np.concatenate([ends.ravel() - _BESIDE, ends.ravel() + _BESIDE, np.arange(0.01, 60, 0.01)]))
    means = means[(means > 0) & (means < 60)]
    covers = (ends[:, :1] <= means) & (means <= ends[:, 1:])
    shares = (poisson.pmf(np.arange(_COUNTS)[:, None], means) * covers).sum(axis=0)
    outside = means[(shares < low) | (shares > high)]
    return float(outside.max(initial=0.0))


def _interval(count: int, *, whole: bool) -> tuple[float, float]:
    unlike = math.exp(-count) if whole else 0.0
    far: PowerMeans = (1e6, 1e12, 1e18)
    return gamma_interval(count, count, count, _MANY, losses=[(1 - unlike, (1.0, 1.0, 1.0)), (unlike, far)])
