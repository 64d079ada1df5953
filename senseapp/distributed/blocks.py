"""Cutting the layers into contiguous blocks that take similar time."""

from __future__ import annotations

from senseapp.distributed.costs import RunCosts

Block = tuple[int, int]
"""Targets from the first to before the last."""

_HALVINGS = 50


def balanced_blocks(costs: RunCosts, count: int) -> tuple[Block, ...]:
    """Return at most ``count`` blocks whose costliest is as cheap as any cut into ``count`` blocks allows.

    Early layers are followed by more of the network, so blocks there hold fewer of them. A block only gets costlier
    when a layer is added, so packing greedily up to a bound uses the fewest blocks; the least bound is found by
    halving.
    """
    running = costs.running_passes()
    low, high = 0.0, 1.000001 * costs.passes(0, len(costs.shares))  # above it, whatever the rounding
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _packed(costs, running, middle, count) is None:
            low = middle
        else:
            high = middle
    packed = _packed(costs, running, high, count)
    assert packed is not None  # the whole network fits its own cost
    return packed


def _packed(costs: RunCosts, running: list[float], bound: float, count: int) -> tuple[Block, ...] | None:
    """Fill blocks up to ``bound`` passes; None if a layer alone is costlier, or more than ``count`` are needed."""
    blocks, first = [], 0
    for index, share in enumerate(costs.shares):
        if 1 - share + running[index + 1] - running[first] <= bound:
            continue
        if index == first or 1 - share + running[index + 1] - running[index] > bound:
            return None
        blocks.append((first, index))
        first = index
        if len(blocks) == count:
            return None
    return (*blocks, (first, len(costs.shares)))
