"""Times of files beside a reference file, on a machine that other programs use too; whether int8 pays on it."""

import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from senseapp.core.steps import OptionalSteps
from senseapp.descriptions.runtimes import installed_runtimes
from senseapp.networks.network import Network
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.records.deployment import DeploySettings, Elsewhere, Median
from senseapp.records.layer_findings import Int8Timing
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.call_times import quick_seconds, ratio

Name = TypeVar("Name", bound=Hashable)

_TURNS, _MOST_TURNS = 15, 100  # of a timing: as many as take _SECONDS
_SECONDS = 0.2  # medians of 15 calls of half a millisecond varied by 1.3 %, of 100 by 0.3 %
_MARGIN = 0.98  # of the time that is allowed: other timings of the same file differ by so much
_OPENINGS, _MORE_OPENINGS = 6, 4  # of a file, for a timing that is to hold; the latter wait for a calm moment
_LEAST_OPENINGS, _LONG_SECONDS = 2, 10.0  # such a timing ends after so many where it has taken so long
_ROUNDS, _TURNS_OF_A_ROUND = 4, 11  # of files that are timed together
_ROUNDS_ELSEWHERE = 2  # in another runtime: a hint, by which no file is chosen
_BUSY_MARGIN = 0.91  # of the time that is allowed, where no calm moment was found: see FileTimes


class FileTimes:
    """Times of files as multiples of that of ``reference``, run in turns on the images ``call``, (N, C, H, W).

    In busy moments of a shared machine, which last for seconds, all calls were seen to take half as long again, and
    int8 to suffer more than float: the same two files differed by up to 9 % less than in a calm moment, while medians
    within the moment hardly varied. So the least time of the reference is remembered,
    and a timing in which it takes much longer is not relied on.
    """

    def __init__(self, runtime: Runtime, reference: bytes, call: Tensor, *, threads: int | None = None) -> None:
        self._runtime, self._reference, self._call, self._threads = runtime, reference, call, threads
        self._opened = runtime.open(reference, threads=threads)
        self._least = float("inf")

    def measure_rough(self, file: bytes) -> float:
        """Return the most that a file takes, as a multiple of the time of the reference, by one timing.

        In a busy moment, it is timed again, a few times.
        """
        opened = self._runtime.open(file, threads=self._threads)
        for _ in range(3):  # timings of a file in a busy moment
            seconds, reference = self._timed(opened, self._opened)
            if calm := self._is_calm(reference):
                break
        return ratio(seconds, reference).value / (_MARGIN if calm else _BUSY_MARGIN)

    def is_within(self, file: bytes, most: float) -> bool:
        """Return whether a file takes at most ``most`` times as long for certain, also when it is opened anew."""
        found = self.measure_precise(file)
        return found.value <= _MARGIN * most and found.high <= most

    def measure_precise(self, file: bytes) -> Median:
        """Return the time of a file as a multiple of the reference's, both opened anew several times.

        The median is of calm moments where there are any, and the interval reaches from the least to the largest median
        of all openings: where memory lies makes a difference, too. On one processor a file took 3 % longer in most
        openings in which it was opened first, so both are opened first by turns. Without a calm moment the interval is
        wider.
        """
        timings: list[tuple[list[float], list[float]]] = []
        started = time.monotonic()
        for count in range(_OPENINGS + _MORE_OPENINGS):
            if count >= _OPENINGS and any(self._is_calm(reference) for _, reference in timings):
                break
            if count >= _LEAST_OPENINGS and time.monotonic() - started > _LONG_SECONDS:
                break
            # opened in this order, or the other way round
            contents = [file, self._reference] if count % 2 == 0 else [self._reference, file]
            opened = [self._runtime.open(content, threads=self._threads) for content in contents]
            seconds, reference = self._timed(*(opened if count % 2 == 0 else reversed(opened)))
            self._is_calm(reference)  # the least time may be of this one
            timings.append((seconds, reference))
        calm = [each for each in timings if self._is_calm(each[1])]
        pooled = [[second for each in calm or timings for second in each[side]] for side in (0, 1)]
        found, medians = ratio(*pooled), [ratio(*each).value for each in timings]
        wider = 1.0 if calm else _MARGIN / _BUSY_MARGIN
        low, high = min(found.low, *medians), max(found.high, *medians)
        return Median(value=found.value, low=low / wider, high=high * wider)

    def _timed(self, opened: Network, reference: Network) -> list[list[float]]:
        """Return the seconds of calls of both in turns: more of them where the reference is known to be quick."""
        turns = max(_TURNS, min(_MOST_TURNS, int(_SECONDS / (2 * self._least))))
        return self._runtime.times((opened, reference), self._call, turns=turns)

    def _is_calm(self, reference: list[float]) -> bool:
        """Return whether the reference takes hardly longer than it ever did."""
        seconds = quick_seconds(reference)
        self._least = min(self._least, seconds)
        # times the least time of the reference, which it takes at most in a calm moment
        return seconds <= 1.12 * self._least


def times_anew(
    openers: Mapping[Name, Callable[[], Network]], runtime: Runtime, call: Tensor, *, rounds: int = _ROUNDS
) -> dict[Name, list[float]]:
    """Return the seconds of calls of files on the images ``call``, (N, C, H, W), in turns as ``runtime`` takes them.

    The same file was seen to differ by 5 % from one opening to another, as memory lies elsewhere. So all are opened
    anew several times, every other time in reverse order.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in openers}
    for count in range(rounds):
        names = list(openers)
        if count % 2:
            names.reverse()
        spent = runtime.times([openers[name]() for name in names], call, turns=_TURNS_OF_A_ROUND)
        for name, each in zip(names, spent, strict=True):
            seconds[name] += each
        if count and sum(map(sum, seconds.values())) > _LONG_SECONDS:
            break
    return seconds


def one_call(network: Network, images: Tensor, batch: int) -> Tensor:
    """Return the images of a call of ``network``, (N, C, H, W): those of one batch, or ``batch`` times the first."""
    return images if network.fixed_batch else images[:1].expand(batch, *images.shape[1:])


def call_of(evaluator: ScheduleEvaluator, batch: int) -> Tensor:
    """Return the images of one call whose time is taken, (N, C, H, W)."""
    image = evaluator.dense.arranged(evaluator.images.proof, 0, 1)[0].cpu()
    return image.expand(batch, *image.shape[1:]).contiguous()


def times_elsewhere(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    files: Mapping[str, bytes],
    settings: DeploySettings,
    steps: OptionalSteps,
) -> tuple[Elsewhere, ...]:
    """Return the times of the file and the original in the other runtimes that are installed and open such files."""
    found = []
    own = runtime.description
    for other in installed_runtimes():
        if other.name == own.name or other.suffix != own.suffix:
            continue
        with steps.trying(f"times in {other.label}"):
            evaluator.progress(f"Timing the file in {other.label} beside {own.label}")
            openers = {
                (name, each.description.name): partial(each.open, files[name], threads=settings.threads)
                for each in (evaluator.runtime(other.name), runtime)
                for name in ("file", "original")
            }
            call = call_of(evaluator, settings.batch)
            spent = times_anew(openers, runtime, call, rounds=_ROUNDS_ELSEWHERE)
            file, original = (ratio(spent[name, other.name], spent[name, own.name]) for name in ("file", "original"))
            found.append(Elsewhere(runtime=other.name, file=file, original=original))
    return tuple(found)


def time_int8(
    runtime: Runtime, network: bytes, images: Sequence[Tensor], *, threads: int = 1, batch: int = 1
) -> Int8Timing:
    """Return how long a float file's network takes in int8: all of it, with ranges of a few ``images``, run in turns.

    Time depends on shapes and precisions only, so the file of a search that leaves nothing in float takes as long. It
    is timed as that is (:class:`~senseapp.prove.file_times.FileTimes`): in some moments on a shared machine, float was
    seen to take 1.8 times as long and int8 no longer.

    Raises InvalidSpec if the runtime cannot write it in int8, or run it.
    """
    int8 = runtime.in_place(network, runtime.quantizer(network, images).write())
    call = one_call(runtime.open(network, threads=threads), images[0], batch)
    ratio = FileTimes(runtime, network, call, threads=threads).measure_precise(int8)
    able = torch.cpu.get_capabilities()
    names = {"amx_int8": "AMX", "avx512_vnni": "VNNI", "avx_vnni": "VNNI", "asimd_dot": "dot products"}
    products = ", ".join(dict.fromkeys(name for flag, name in names.items() if able.get(flag)))
    return Int8Timing(ratio=ratio, machine=runtime.machine(), products=products)


def is_busy() -> bool:
    """Return whether more programs want to run than this machine has processors for, by half."""
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)  # programs that want to run, for each processor
