"""How long a list of tasks takes on a number of workers, each taking the next task when it is free."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def makespan(seconds: Sequence[float], workers: int, *, ready: Sequence[float] = (), start: float = 0.0) -> float:
    """Return when the last task ends, if tasks are handed out in their order to whoever is free first.

    At least ``start + total / workers`` and at least as long as the longest task; without ready times at most the sum
    of the two (Graham, 1966), and never longer with one worker more.

    >>> makespan([3, 1, 1, 1], 2)
    3.0
    >>> makespan([1, 1], 2, ready=[0, 5])
    6.0

    Args:
        seconds: of each task.
        workers: that work at the same time.
        ready: when each task may begin at the earliest; empty if at once.
        start: when the workers begin.
    """
    free = [start] * min(workers, max(1, len(seconds)))
    last = start
    for number, duration in enumerate(seconds):
        begin = max(free[0], ready[number]) if ready else free[0]
        end = begin + duration
        heapq.heapreplace(free, end)
        last = max(last, end)
    return float(last)
