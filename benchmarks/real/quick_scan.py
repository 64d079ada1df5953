"""How well the quick scan ranks the layers of a real network, and how far its estimates are off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.real.network import load_network
from benchmarks.real.photographs import MADE_FROM, SCORED_ON, tensors
from benchmarks.results import Row
from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

RUNS: tuple[tuple[CompressionConfig, tuple[float, ...]], ...] = (
    (SparsityConfig(), (0.5, 0.7, 0.9)),
    (QuantizationConfig(), (8, 4, 3)),
)
NUM_IMAGES = 128
_LEAST_NATS = 0.01  # what is smaller is not reported as a factor


@dataclass(frozen=True, slots=True)
class _Level:
    name: str
    spearman: float
    sums: float
    under: float
    over: float


def levels() -> Iterator[_Level]:
    """Yield how estimates at each level compare with measured KL on the same photographs."""
    images = TensorImages(tensors(NUM_IMAGES, (*SCORED_ON, *MADE_FROM)))  # nothing is made here that is scored later
    for compression, values in RUNS:
        sweep = Sweep.open(
            load_network(), images, SensitivitySpec(compression=compression, levels=values), task=CLASSIFICATION
        )
        guessed = {item.key: change.delta for item in quick_scan(sweep) if (change := item.change("kl"))}
        measured = {item.key: change.delta for item in sweep.measure() if (change := item.change("kl"))}
        for level in values:
            pairs = [(guessed[key], measured[key]) for key in measured if key[1] == level]
            factors = [guess / found for guess, found in pairs if max(guess, found) >= _LEAST_NATS] or [1.0]
            yield _Level(
                name=f"{level:.0%} zeros" if level < 1 else f"{level:g} bits",
                spearman=spearman([guess for guess, _ in pairs], [found for _, found in pairs]),
                sums=sum(guess for guess, _ in pairs) / sum(found for _, found in pairs),
                under=max(1.0, 1 / min(factors)),
                over=max(1.0, *factors),
            )


def rows() -> Iterator[Row]:
    """Yield the least rank correlation, the worst factors, and the ratio of sums farthest from one."""
    found = list(levels())
    least = min(found, key=lambda each: each.spearman)
    yield Row(
        what=f"Spearman of the quick scan with measured KL, least over 50, 70, 90 % zeros and 8, 4, 3 bits, "
        f"{NUM_IMAGES} photographs",
        wanted="≥ .95",
        found=f"{least.spearman:.3f} ({least.name})",
        holds=least.spearman >= 0.95,
    )
    sums = max(found, key=lambda each: abs(math.log(each.sums)))
    yield Row(
        what="Estimates summed over layers ÷ measured KL, the level that is farthest off",
        wanted="0.5 to 2",
        found=f"{sums.sums:.2f} ({sums.name})",
        holds=0.5 <= sums.sums <= 2,
    )
    under, over = max(found, key=lambda each: each.under), max(found, key=lambda each: each.over)
    yield Row(
        what=f"A layer's estimate, worst factor too small and too large, of those above {_LEAST_NATS} nats",
        wanted="under 5 each",
        found=f"{under.under:.1f} ({under.name}), {over.over:.1f} ({over.name})",
        holds=max(under.under, over.over) < 5,
    )
