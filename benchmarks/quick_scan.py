"""How well the quick scan ranks layers: Spearman with measured KL on five trained networks, by level.

    python -m benchmarks.quick_scan [NETWORK ...]

The networks are the demo and those of :mod:`benchmarks.networks`; none was chosen by its figure. All are measured on
the held-out digits. Without names all are taken.
"""

from __future__ import annotations

import sys
import time

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
RUNS: dict[CompressionConfig, dict[float, str]] = {
    SparsityConfig(): {0.5: "50 %", 0.7: "70 %", 0.9: "90 %"},
    QuantizationConfig(): {4: "4 bits", 3: "3 bits", 2: "2 bits"},
    PruningConfig(): {0.3: "30 % pruned", 0.5: "50 % pruned"},
}
"""Levels of each compression, and their columns in the table."""


def row(name: str) -> dict[str, object]:
    """Scan and measure one network; return held-out accuracy, Spearman by level, and processor seconds of both."""
    network = load_demo_model().module if name == DEMO else trained(name)
    title, images = NETWORKS[name].title if name in NETWORKS else DEMO, load_demo_images("heldout")
    cells: dict[str, object] = {}
    seconds = [0.0, 0.0]
    for compression, levels in RUNS.items():
        spec = SensitivitySpec(compression=compression, levels=tuple(levels))
        sweep = Sweep.open(network, images, spec, task=CLASSIFICATION)
        started = time.process_time()
        estimates = list(quick_scan(sweep))
        between = time.process_time()
        found = estimate_agreement(estimates, sweep.measure())
        seconds = [seconds[0] + between - started, seconds[1] + time.process_time() - between]
        cells |= {column: f"{found.get(f'{level:g}', float('nan')):.3f}" for level, column in levels.items()}
    told = {"network": title, "layers": len(sweep.context.profile.layers), "top-1": f"{top1(network, images):.3f}"}
    spent = zip(("scan, processor s", "measured, processor s"), seconds, strict=True)
    return {**told, **cells, **{what: f"{each:.1f}" for what, each in spent}}


def main() -> None:
    """Keep a row of each network named, or of all."""
    torch.set_num_threads(1)
    for name in sys.argv[1:] or (DEMO, *NETWORKS):
        keep("quick_scan", row(name))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
