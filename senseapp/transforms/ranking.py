"""Which units of a layer are the least important ones, for any number of them, after one sort."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["Ranking", "num_zeroed"]

# What floor() may lose to binary fractions: 0.29 of 100 is 28.999999999999996.
_ROUNDING = 1e-9


def num_zeroed(level: float, num_units: int) -> int:
    """Return floor(``level`` · ``num_units``), unhurt by binary fractions.

    >>> num_zeroed(0.29, 100)
    29
    """
    return math.floor(level * num_units + _ROUNDING)


class Ranking:
    """Units that compete within contests, sorted once.

    Each contest loses the same number of units, but for one: the contests whose next unit scores least lose one more.
    So any number of units can be zeroed exactly, and a larger number zeroes all that a smaller one did. Ties go by
    position; scores that are not a number count as the most important.

    Attributes:
        num_units: how many there are.
    """

    def __init__(self, scores: Tensor) -> None:
        """Take ``scores``, float32 (contests, competitors)."""
        self._scores = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        # numpy sorts values thirty times faster than torch sorts values with their indices.
        self._sorted = torch.from_numpy(np.sort(self._scores.cpu().numpy(), axis=1)).to(scores.device)
        self.num_units = scores.numel()

    def kept(self, num_lost: int) -> Tensor:
        """Return bool (contests, competitors): all but the ``num_lost`` least important, fewer than ``num_units``."""
        each, extra = divmod(num_lost, len(self._scores))
        quotas = torch.full((len(self._scores), 1), each, device=self._scores.device)
        quotas[self._sorted[:, each].argsort(stable=True)[:extra]] += 1
        threshold = self._sorted.gather(1, (quotas - 1).clamp_min(0))
        below = self._scores < threshold
        missing = quotas - below.sum(dim=1, keepdim=True)
        tied = self._scores == threshold
        if bool((tied.sum(dim=1, keepdim=True) > missing).any()):
            tied &= tied.cumsum(dim=1) <= missing
        return ~(below | tied)
