"""Which ranks the noise leaves possible, and which layers share one. Rank 1 is the most fragile layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from senseapp.core.errors import InvalidInput


def joint_confidence(count: int, confidence: float = 0.95) -> float:
    """Confidence that each of ``count`` intervals needs for all to hold together with ``confidence``.

    Pass it to ``change_of`` and the outcome to :func:`rank_intervals` for a *joint* region of all ranks. Layers
    measured on the same images are correlated; Šidák's inequality covers that for (near) normal estimates.

    Source: Šidák (1967), Rectangular confidence regions for the means of multivariate normal distributions, JASA 62.

    >>> round(joint_confidence(10), 4)
    0.9949
    """
    return float(confidence ** (1 / max(1, count)))


def _surely_below(lows: Sequence[float], highs: Sequence[float]) -> NDArray[np.bool_]:
    """Matrix whose entry (i, j) says that interval i lies wholly below interval j."""
    if len(lows) != len(highs):
        raise InvalidInput(f"Each interval needs both ends, got {len(lows)} lower and {len(highs)} upper ends.")
    below: NDArray[np.bool_] = np.asarray(highs, dtype=float)[:, None] < np.asarray(lows, dtype=float)[None, :]
    return below


def rank_intervals(lows: Sequence[float], highs: Sequence[float]) -> list[tuple[int, int]]:
    """Best and worst possible rank of each layer.

    The best rank is 1 plus the number of layers whose interval lies wholly above, the worst is the number of
    layers minus those wholly below. An undefined (nan) interval could lie anywhere.

    Source: Klein, Wright and Wieczorek (2020), A joint confidence region for an overall ranking of populations,
    JRSS C 69, theorem 1.

    >>> rank_intervals([5, 1, 2], [6, 3, 4])
    [(1, 1), (2, 3), (2, 3)]
    """
    below = _surely_below(lows, highs)
    best = 1 + below.sum(axis=1)
    worst = len(lows) - below.sum(axis=0)
    return [(int(first), int(last)) for first, last in zip(best, worst, strict=True)]


def shared_ranks(deltas: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[int]:
    """One rank per layer; neighbours that cannot be told apart share it.

    Layers are walked from the largest delta down. A layer with rank r has r - 1 layers that are surely more
    fragile than it or than a layer above it, so ranks never fall on the way down. Undefined deltas come last.

    >>> shared_ranks([9, 8, 3, 2], [8, 7, 2, 1], [10, 9, 4, 3])
    [1, 1, 3, 3]
    """
    best = [first for first, _ in rank_intervals(lows, highs)]
    order = np.argsort(-np.asarray(deltas, dtype=float), kind="stable")  # numpy sorts nan to the end
    ranks = [0] * len(best)
    rank = 1
    for index in order:
        rank = max(rank, best[index])
        ranks[index] = rank
    return ranks


def undecided(lows: Sequence[float], highs: Sequence[float]) -> set[int]:
    """Layers whose rank more images could still settle: those whose interval overlaps another one.

    Equal intervals of no width (layers that change nothing) are ties that no image will break; undefined
    intervals are no reason to measure on either.
    """
    low, high = np.asarray(lows, dtype=float), np.asarray(highs, dtype=float)
    below = _surely_below(lows, highs)
    point = low == high
    tied = point[:, None] & point[None, :] & (low[:, None] == low[None, :])
    known = ~np.isnan(low) & ~np.isnan(high)
    overlap = ~(below | below.T | tied) & known[:, None] & known[None, :]
    np.fill_diagonal(overlap, False)
    return {int(index) for index in np.flatnonzero(overlap.any(axis=1))}


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, 1 for the smallest; equal values take the mean of their ranks.

    >>> mean_ranks([0.5, 9.0, 0.5])
    [1.5, 3.0, 1.5]
    """
    # Not scipy.stats.rankdata: a page may rank while another thread imports torch, which scipy looks into half loaded.
    _, places, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return [float(rank) for rank in means[places]]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation over the pairs in which both are defined; ties take their mean rank.

    From -1 to 1; nan if fewer than two pairs are defined, or one side is constant: there is no order then.
    """
    if len(first) != len(second):
        raise InvalidInput(f"A rank correlation needs pairs, got {len(first)} and {len(second)} values.")
    pairs = np.asarray([first, second], dtype=float)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    if pairs.shape[1] < 2:
        return float("nan")
    ranks = np.asarray([mean_ranks(side) for side in pairs])
    if np.any(ranks.min(axis=1) == ranks.max(axis=1)):
        return float("nan")
    return float(np.corrcoef(ranks)[0, 1])
