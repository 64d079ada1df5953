"""How well the quick scan ranks layers: Spearman with measured KL on five trained networks, by level.

    python -m benchmarks.quick_scan [NETWORK ...]

The networks are the demo and those of :mod:`benchmarks.networks`; none was chosen by its figure. All are measured on
the held-out digits. Without names all are taken.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.networks import NETWORKS, trained
from benchmarks.results import keep
from scripts.train_demo import top1
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.process import become_measuring
from senseapp.data.load import load_demo_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.session import estimate_agreement
from senseapp.measure.sweep import Sweep
from senseapp.networks.sources.demo import load_demo_model
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

DEMO = "demo"
RUNS: tuple[tuple[CompressionConfig, tuple[float, ...]], ...] = (
    (SparsityConfig(), (0.5, 0.7, 0.9)),
    (QuantizationConfig(), (4, 3, 2)),
    (PruningConfig(), (0.3, 0.5)),
)
COLUMNS = (
    "network",
    "layers",
    "top-1",
    "50 %",
    "70 %",
    "90 %",
    "4 bits",
    "3 bits",
    "2 bits",
    "30 % pruned",
    "50 % pruned",
)
NUM_IMAGES = 897
NUM_REQUIRED = 6  # the median and the least are those of sparsity and quantization


@dataclass(frozen=True)
class Row:
    """One network: number of layers, held-out accuracy, Spearman by run and level, processor seconds of both."""

    network: str
    layers: int
    accuracy: float
    spearman: tuple[float, ...]
    quick_seconds: float
    exact_seconds: float

    def cells(self) -> dict[str, object]:
        """Return it as a row of the results."""
        figures = (self.network, self.layers, f"{self.accuracy:.3f}", *(f"{value:.3f}" for value in self.spearman))
        seconds = {
            "scan, processor s": f"{self.quick_seconds:.1f}",
            "measured, processor s": f"{self.exact_seconds:.1f}",
        }
        return {**dict(zip(COLUMNS, figures, strict=True)), **seconds}


def row(name: str) -> Row:
    """Scan and measure one network."""
    network = load_demo_model().module if name == DEMO else trained(name)
    title, images = NETWORKS[name].title if name in NETWORKS else DEMO, load_demo_images("heldout")
    spearman: list[float] = []
    seconds = [0.0, 0.0]
    for compression, levels in RUNS:
        sweep = Sweep.open(
            network, images, SensitivitySpec(compression=compression, levels=levels), task=CLASSIFICATION
        )
        started = time.process_time()
        estimates = list(quick_scan(sweep))
        between = time.process_time()
        found = estimate_agreement(estimates, sweep.measure())
        seconds = [seconds[0] + between - started, seconds[1] + time.process_time() - between]
        spearman += [found.get(f"{level:g}", float("nan")) for level in levels]
    layers = len(sweep.context.profile.layers)
    return Row(title, layers, top1(network, images), tuple(spearman), *seconds)


def rows(names: Sequence[str] = (DEMO, *NETWORKS)) -> list[Row]:
    """Return one row for each network."""
    torch.set_num_threads(1)
    return [row(name) for name in names]


def main() -> None:
    """Keep a row of each network named, or of all."""
    for found in rows(sys.argv[1:] or (DEMO, *NETWORKS)):
        keep("quick_scan", found.cells())


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
