"""Which units of a layer are the least important ones, for any number of them, after one sort."""

from __future__ import annotations

import math
from bisect import bisect, insort

import numpy as np
import torch
from torch import Tensor

# What floor() may lose to binary fractions: 0.29 of 100 is 28.999999999999996.
_ROUNDING = 1e-9


def num_zeroed(level: float, num_units: int) -> int:
    """Return floor(``level`` · ``num_units``), unhurt by binary fractions.

    >>> num_zeroed(0.29, 100)
    29
    """
    return math.floor(level * num_units + _ROUNDING)


class Ranking:
    """Units that compete within contests, sorted as far as the numbers that are asked for need.

    Each contest loses the same number of units, but for one: the contests whose next unit scores least lose one more.
    So any number of units can be zeroed exactly, and a larger number zeroes all that a smaller one did. Ties go by
    position; scores that are not a number count as the most important.

    Attributes:
        num_units: how many there are.
    """

    def __init__(self, scores: Tensor) -> None:
        """Take ``scores``, float32 (contests, competitors)."""
        self._scores = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        self._ordered = np.array(self._scores.cpu().numpy())  # a copy: it is put in order in place
        self._settled = [-1, scores.shape[1]]  # columns that hold what a sort would put there, and the two edges
        self.num_units = scores.numel()

    def _column(self, place: int) -> Tensor:
        """Return the scores (contests,) that come at ``place``, counted from the least.

        To part the stretch between two columns that are known takes a fifth of the time of a sort.
        """
        right = bisect(self._settled, place)
        low, high = self._settled[right - 1] + 1, self._settled[right]
        if low <= place:
            self._ordered[:, low:high].partition(place - low, axis=1)
            insort(self._settled, place)
        return torch.from_numpy(self._ordered[:, place]).to(self._scores.device)

    def kept(self, num_lost: int) -> Tensor:
        """Return bool (contests, competitors): all but the ``num_lost`` least important, fewer than ``num_units``."""
        each, extra = divmod(num_lost, len(self._scores))
        quotas = torch.full((len(self._scores), 1), each, device=self._scores.device)
        threshold = self._column(max(each - 1, 0))[:, None]
        if extra:
            following = self._column(each)
            more = following.argsort(stable=True)[:extra]
            quotas[more] += 1
            threshold = threshold.index_put((more,), following[more, None])
        kept = self._scores > threshold
        if int(kept.count_nonzero()) == self.num_units - num_lost:
            return kept  # to count in each contest takes as long as all of the above
        spared = self._scores.shape[1] - quotas - kept.sum(dim=1, keepdim=True)  # of those at the threshold
        tied = self._scores == threshold
        lost = tied.sum(dim=1, keepdim=True) - spared
        return kept | (tied & (tied.cumsum(dim=1) > lost))
