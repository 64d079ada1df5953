"""How well the quick scan ranks the layers of a real network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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


def rows() -> Iterator[Row]:
    """Yield the least rank correlation of estimates with measured KL on the same photographs."""
    images = TensorImages(tensors(NUM_IMAGES, (*SCORED_ON, *MADE_FROM)))  # nothing is made here that is scored later
    found = list[tuple[float, str]]()
    for compression, levels in RUNS:
        spec = SensitivitySpec(compression=compression, levels=levels)
        # Before measurements, estimates are a preview of fewer images.
        quick = Sweep.open(load_network(), images, replace(spec, mode="quick"), task=CLASSIFICATION)
        guessed = {item.key: change.delta for item in quick_scan(quick) if (change := item.change("kl"))}
        sweep = Sweep.open(load_network(), images, spec, task=CLASSIFICATION)
        measured = {item.key: change.delta for item in sweep.measure() if (change := item.change("kl"))}
        for level in levels:
            pairs = [(guessed[key], measured[key]) for key in measured if key[1] == level]
            name = f"{level:.0%} zeros" if level < 1 else f"{level:g} bits"
            found.append((spearman(*map(list, zip(*pairs, strict=True))), name))
    least, name = min(found)
    yield Row(
        what=f"Spearman of the quick scan with measured KL, least over 50, 70, 90 % zeros and 8, 4, 3 bits, "
        f"{NUM_IMAGES} photographs",
        wanted="≥ .95",
        found=f"{least:.3f} ({name})",
        holds=least >= 0.95,
    )
