"""This machine's speed, timed once, and how busy other programs keep it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from senseapp.core.codec import register
from senseapp.core.load import share_left


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """Speed of a forward pass here: MACs per second of a large convolution, and seconds per call of any module."""

    macs_per_second: float
    seconds_per_call: float


register(MachineSpeed)

_TIMED_SECONDS = 0.1  # of each convolution
_THREADS_HELP = 0.7  # power of their number by which threads speed a convolution up


@cache
def time_convolutions() -> MachineSpeed:
    """Time a large and a tiny convolution for about a quarter of a second, once in a process.

    In one thread and in seconds of the processor, so that what else runs here does not count.
    """
    import torch  # the app paints before torch is loaded

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            channels, size = 64, 56
            large = torch.nn.Conv2d(channels, channels, 3, padding=1)
            image = torch.zeros(1, channels, size, size)
            large_seconds = _processor_seconds(lambda: large(image))
            tiny = torch.nn.Conv2d(1, 1, 1)
            pixel = torch.zeros(1, 1, 1, 1)
            call_seconds = _processor_seconds(lambda: tiny(pixel))
    finally:
        torch.set_num_threads(threads)
    macs = threads**_THREADS_HELP * channels * channels * 9 * size * size
    return MachineSpeed(macs_per_second=macs / max(large_seconds - call_seconds, 1e-7), seconds_per_call=call_seconds)


def _processor_seconds(call: Callable[[], object]) -> float:
    call()  # the first one sets up memory
    calls, start, end = 0, time.thread_time(), time.perf_counter() + _TIMED_SECONDS
    while time.perf_counter() < end or not calls:
        call()
        calls += 1
    return max(time.thread_time() - start, 1e-7) / calls


_LOAD_SECONDS = 10.0  # for which a look holds
_KEPT_BUSY = 0.65  # of the processors' time, that a run uses on a quiet machine: parts of it have one thread


class LoadWatch:
    """How busy this machine is: the quieter of the last two looks, as a page that is drawn is busy for a moment.

    Before the second look it counts as quiet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: deque[float] = deque([1.0], maxlen=2)
        self._looked = -math.inf
        self.known = True

    @contextmanager
    def unknown(self) -> Iterator[None]:
        """Do not look inside the block, in which this program keeps the processors busy for a moment, but after it."""
        self.known = False
        try:
            yield
        finally:
            self.known, self._looked = True, -math.inf
            self._found = deque([1.0], maxlen=2)
            self.slowdown()

    def slowdown(self) -> float:
        """Return how many times as long as on a quiet machine a run takes now; as before where that is not known."""
        with self._lock:
            if self.known and time.monotonic() - self._looked > _LOAD_SECONDS:
                processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
                if (share := share_left(processors)) is not None:
                    self._found.append(max(1.0, _KEPT_BUSY / share))
                self._looked = time.monotonic()
            return min(self._found, default=1.0)


MACHINE_LOAD = LoadWatch()
"""Of this process's machine."""
