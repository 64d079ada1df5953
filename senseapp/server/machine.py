"""This process and its machine: the engine, a limit on memory, speed, and how busy other programs keep it."""

import gc
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import psutil

from senseapp.core.errors import OutOfMemory, is_about_memory
from senseapp.core.files import MB
from senseapp.core.load import share_left
from senseapp.descriptions import all_descriptions
from senseapp.server.settings import whole_number

_loading = threading.Lock()
_ENGINE = (
    *("senseapp.measure.session", "senseapp.measure.quick.scan", "senseapp.measure.histograms"),
    "senseapp.networks.sources.load",
)


def load_engine() -> None:
    """Import everything a run needs; call it before the engine is used in a thread.

    The modules of timm import each other: two threads that import them at once may see half-loaded modules, so the
    first one imports all. The garbage collector skips the loaded objects, since a scan of torch would delay pages.
    """
    with _loading:
        first = _ENGINE[0] not in sys.modules
        if first:
            from senseapp.compat.torch_internals import import_without_compiler  # torch loads here

            import_without_compiler("torchvision", "timm")
        for module in _ENGINE:
            import_module(module)
        for description in all_descriptions():
            description.load_compressor()

        if first:
            gc.collect()
            gc.freeze()


def runs_on_processor(device: str) -> bool:
    """Return whether runs on ``device`` (a setting, which may be ``auto``) use this machine's own memory."""
    if device != "auto":
        return device == "cpu"
    load_engine()
    from senseapp.measure.context import choose_device  # torch has loaded by now

    return choose_device(device).type == "cpu"


_SHARE_OF_FREE = 0.9  # of the memory for one job; the rest is for the server
_STACK_BYTES = 8 * 1024 * 1024  # of a thread on Linux, at most
_CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(*, most_bytes: float = math.inf, limited: bool = True) -> Iterator[None]:
    """Limit this process's data segment inside the block; for a process that does one thing at a time.

    An allocation beyond the limit fails as an error in the allocating code, where the system would grant it and later
    kill the process. Memory that the process holds already does not count. ``SENSEAPP_JOB_MEMORY_MB`` is the limit; 0
    allows nine tenths of what is free now.

    Args:
        most_bytes: a further bound where a foreign file is opened; the stacks of threads, which are reserved and hardly
            used, are added.
        limited: False for a job on an accelerator; there is no limit on systems without one either.

    Raises OutOfMemory if the block needs more memory.
    """
    job_mb = whole_number("SENSEAPP_JOB_MEMORY_MB", 0, unit="megabytes", least=0)
    allowed = job_mb * MB or _SHARE_OF_FREE * free_bytes()
    used = getattr(psutil.Process().memory_info(), "data", None) if limited else None  # unknown on some systems
    before = (0, 0)
    if used is not None:
        import resource  # exists wherever the size of the data segment is known

        before = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + int(min(allowed, most_bytes + (os.cpu_count() or 1) * _STACK_BYTES))
        highest = before[1] if before[1] != resource.RLIM_INFINITY else limit
        resource.setrlimit(resource.RLIMIT_DATA, (min(limit, highest), before[1]))
    try:
        yield
    except Exception as error:
        if not is_about_memory(error):
            raise
        if most_bytes <= allowed:
            raise OutOfMemory(
                f"To open this takes more than the {most_bytes / 1e9:.1f} GB of memory that a file of its size "
                "may take here. Choose another file, or save this one again with the program that made it."
            ) from error
        raise OutOfMemory(
            f"This needs more memory than there is for one run here ({allowed / 1e9:.1f} GB). Choose a smaller "
            "input size, fewer images in one batch, or a smaller model."
        ) from error
    finally:
        if used is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes() -> int:
    """Return the free memory of the machine, or of the container if that is less."""
    free = int(psutil.virtual_memory().available)
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if most == "max" else min(free, max(0, int(most) - int(used)))
    except (OSError, ValueError):
        return free


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    """Speed of a forward pass here.

    MACs per second of a large convolution, values per second of a norm with its activation, and seconds per call of any
    module.
    """

    macs_per_second: float
    values_per_second: float
    seconds_per_call: float


_TIMED_SECONDS, _SPANS, _REST_SECONDS = 0.02, 12, 0.04  # of each call, in spans with a rest after them
_THREADS_HELP = 0.7  # power of their number by which threads speed a convolution up


@cache
def time_convolutions() -> MachineSpeed:
    """Time a large and a tiny convolution and a norm within about a second, once in a process.

    In one thread and in seconds of the processor, so that what else runs here does not count.
    """
    import torch  # the app paints before torch is loaded

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            channels, size = 64, 56
            large = torch.nn.Conv2d(channels, channels, 3, padding=1)
            norm = torch.nn.Sequential(torch.nn.BatchNorm2d(channels), torch.nn.ReLU()).eval()
            image = torch.zeros(1, channels, size, size)
            tiny = torch.nn.Conv2d(1, 1, 1)
            pixel = torch.zeros(1, 1, 1, 1)
            large_seconds, norm_seconds, call_seconds = _processor_seconds(
                lambda: large(image), lambda: norm(image), lambda: tiny(pixel)
            )
    finally:
        torch.set_num_threads(threads)
    values = threads**_THREADS_HELP * image.numel()
    return MachineSpeed(
        macs_per_second=9 * channels * values / max(large_seconds - call_seconds, 1e-7),
        values_per_second=values / max(norm_seconds - 2 * call_seconds, 1e-7),
        seconds_per_call=call_seconds,
    )


def _processor_seconds(*calls: Callable[[], object]) -> list[float]:
    """Return the mean seconds of each call over spans in turns.

    Where virtual machines share a core, each is a half slower for a second or so, by what the other one does.
    """
    counts, taken = [0] * len(calls), [0.0] * len(calls)
    for call in calls:
        call()  # the first one sets up memory
    for _ in range(_SPANS):
        for place, call in enumerate(calls):
            start, end, done = time.thread_time(), time.perf_counter() + _TIMED_SECONDS, 0
            while time.perf_counter() < end or not done:
                call()
                done += 1
            counts[place] += done
            taken[place] += time.thread_time() - start
        time.sleep(_REST_SECONDS)
    return [max(seconds, 1e-7) / count for seconds, count in zip(taken, counts, strict=True)]


_LOAD_SECONDS = 10.0  # for which a look holds
_APART_SECONDS = 1.5  # of the first looks
_FIRST_LOOKS, _BUSY = 6, 2.0  # the most of them, and the load beyond which a page may still be drawn


class LoadWatch:
    """How busy others keep this machine: the quieter of the last two looks, as a page that is drawn takes a moment.

    The quietest of the first looks counts as one. Before the second it counts as quiet.
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
            self.look_until_quiet()
            self.known = True

    def look_until_quiet(self) -> None:
        """Look several times, for as long as a page may still be drawn; the quietest look counts as the last two."""
        quietest = math.inf
        for place in range(_FIRST_LOOKS):
            time.sleep(_APART_SECONDS if place else 0)
            self._look()
            quietest = min(quietest, self._found[-1])
            if place and quietest <= _BUSY:
                break
        self._found.extend([quietest, quietest])

    def load(self) -> float:
        """Return how many times as long as on a quiet machine work takes now that keeps all processors busy.

        As before where that is not known.
        """
        with self._lock:
            if self.known and time.monotonic() - self._looked > _LOAD_SECONDS:
                self._look()
            return min(self._found)

    def _look(self) -> None:
        began, before = time.perf_counter(), _own_seconds()
        share = share_left(num_processors())
        if share is not None:
            own = max(0.0, _own_seconds() - before) / (num_processors() * (time.perf_counter() - began))
            # What this program's processes take, as they start or work, goes to a run and to all others in proportion.
            self._found.append(max(1.0, max(0.0, 1 - own) / share))
        self._looked = time.monotonic()


def _own_seconds() -> float:
    """Return the processor time that this program's processes have taken; 0 if one of them ends at this moment."""
    own = psutil.Process()
    with suppress(psutil.Error):
        return float(sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True))))
    return 0.0


MACHINE_LOAD = LoadWatch()
"""Of this process's machine."""
