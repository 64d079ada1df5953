"""One number for accuracy and compute: what a search for compressed networks maximises."""

from __future__ import annotations

import math


def accuracy_reward(top1: float, macs_left: float) -> float:
    """Return −(1 − top-1) · ln(MACs left): 0 for a model without errors, and lower with errors and with compute.

    Source: He et al. 2018, "AMC: AutoML for model compression and acceleration on mobile devices", section 3.4, where
    the compute of the whole network is meant.

    >>> round(accuracy_reward(0.75, 1_000_000), 3)
    -3.454
    """
    return (top1 - 1) * math.log(macs_left)
