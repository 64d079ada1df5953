"""Times of calls of networks that take turns, ratios of such times, kernels of profiles, and this processor."""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from senseapp.core.process import quiet
from senseapp.networks.network import Network, in_calls
from senseapp.records.deployment import Median

TURNS = 41
"""How often each network runs for its time: enough that the interval of its median leaves out the slow quarter."""
RUNS = 21
"""How often a file runs for the times of its kernels."""
_LEAST_TURNS, _LONG_SECONDS = 7, 4.0  # a timing ends early after so many turns if all calls took so long


def times(networks: Sequence[Network], images: Tensor, *, turns: int = TURNS) -> list[list[float]]:
    """Return, for each network, the seconds of ``turns`` calls on ``images``.

    The networks take turns, so that turn *i* of one was made beside turn *i* of the others, and whatever else the
    machine does meets them alike. Long calls, whose times vary less, have fewer turns.
    """
    seconds: list[list[float]] = [[] for _ in networks]
    with quiet():
        for turn in range(turns + 1):
            if turn > _LEAST_TURNS and sum(map(sum, seconds)) > _LONG_SECONDS:
                break
            for network, spent in zip(networks, seconds, strict=True):
                started = time.perf_counter()
                for part in in_calls(network, images):
                    network.run(part)
                if turn:  # the first call prepares kernels
                    spent.append(time.perf_counter() - started)
    return seconds


def ratio(seconds: Sequence[float], to: Sequence[float]) -> Median:
    """Return the median of the ratios, turn by turn, of ``seconds`` to those of another of :func:`times`.

    On a busy machine both wait alike, which brings ratios closer to 1 than when nothing else runs. The quickest calls
    wait least, so the interval includes their ratio.
    """
    found = Median.of([one / other for one, other in zip(seconds, to, strict=True)])
    quick = quick_seconds(seconds) / quick_seconds(to)
    return replace(found, low=min(found.low, quick), high=max(found.high, quick))


def quick_seconds(seconds: Sequence[float]) -> float:
    """Return the seconds of a quick call: a tenth of the calls are quicker."""
    # share of calls that are quicker than the one that quick_seconds returns
    return sorted(seconds)[int(0.1 * len(seconds))]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a profile over :data:`RUNS` runs, with the seconds of a call, and values of its first input.

    ``name`` is, or begins with, that of the node of this ``kind``; ``parts`` are names of all nodes that it computes,
    where the runtime says them. ``in_integers`` tells that it computes on numbers of 8 bits.
    """

    name: str
    kind: str
    seconds: float
    values: int
    in_integers: bool = False
    parts: tuple[str, ...] = ()


def usual_input(shape: Sequence[int], kind: np.dtype[Any] | type) -> NDArray[Any]:
    """Return an input to take times with: standard normal numbers, or whole ones from 0 to 254 of a type of integers.

    Shares of a softmax over larger numbers fall below 1e-38, where some processors take ten times as long.
    """
    generator = np.random.default_rng(0)
    if np.issubdtype(kind, np.integer):
        return generator.integers(0, 255, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


_PRODUCTS_OF_8_BITS = ("avx512_vnni", "avx_vnni", "amx_int8")


def saturates() -> bool:
    """Return whether sums of products of 8 bits saturate on this processor.

    Kernels of onnxruntime and OpenVINO for AVX2 or AVX-512 without VNNI add two products in 16 bits, ``VPMADDUBSW``.
    """
    found = torch.cpu.get_capabilities()
    return found.get("architecture") == "x86_64" and not any(found.get(each) for each in _PRODUCTS_OF_8_BITS)


def processor() -> str:
    """Return the processor, and whether it has dot products of 8 bits: ``AMD EPYC without VNNI``."""
    name = torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    return f"{name} {'without' if saturates() else 'with'} VNNI"
