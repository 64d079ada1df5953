"""Exact replay of networks from ONNX files against its floor: ``python -m benchmarks.onnx_replay [NETWORK …]``.

The floor is that of ``benchmarks.dense.floor``: what depends on the changed layer, by calls that are timed in plain
passes. The same layers and levels are measured by whole passes, too, and every figure is compared.
"""

from __future__ import annotations

import argparse
import importlib
import logging
from collections.abc import Iterable
from statistics import median

import torch
from torch import Tensor

from benchmarks.dense.floor import LEVELS, Passes, now
from benchmarks.onnx_in import exported, network_of
from benchmarks.results import write_row
from senseapp.data.images import TensorImages
from senseapp.measure.sweep import Sweep
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.profile import compressible_weights
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

TITLE = "Exact replay of ONNX files against its floor (`python -m benchmarks.onnx_replay`)"
NETWORKS = ("resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "test_convnext", "test_vit")
HEAD = (
    "Processor time on one thread; the floor is what depends on the changed layer. *Opening* is what comes before the "
    "first measurement. Every figure is compared with that of whole passes.",
    "",
    "| network, exporter, images | layers × levels | opening, s | measuring, s | floor ÷ measuring (wanted ≥ .85) | "
    "plain loop ÷ measuring | figures that differ from whole passes | reached |",
    "|---|---|---|---|---|---|---|---|",
)
_WANTED = 0.85


def measured(name: str, *, dynamo: bool, count: int, most_layers: int) -> str:
    """Return the row of one file."""
    module, side = network_of(name)
    network = open_onnx(exported(module, side, dynamo=dynamo, free=True)).network.requires_grad_(False)
    network.images = ImageInput()
    images = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    layers = [each for each, _, _ in compressible_weights(network)]
    chosen = tuple(layers[:: -(-len(layers) // most_layers)])
    spec = SensitivitySpec(levels=LEVELS, num_samples=count, device="cpu", layers=chosen)
    started = now()
    sweep = Sweep.open(network, TensorImages(images), spec, task=CLASSIFICATION)
    opening, passes, spent, found = now() - started, Passes(), list[float](), list[LayerMeasurement]()
    assert sweep.context.replay_obstacle is None, sweep.context.replay_obstacle
    started = now()
    for each in sweep.measure():
        spent.append(now() - started)
        found.append(each)
        if len(spent) % len(LEVELS) == 0:
            passes.add(sweep)
        started = now()
    floor = len(LEVELS) * sum(passes.floor_of(sweep.context.trace, item) for item in sweep.planned)
    plain = len(spent) * (median(passes.whole) + median(passes.reading))
    share, measuring = floor / sum(spent), sum(spent)
    unlike = differing(found, whole_passes(sweep, images, spec))
    exporter = "newer" if dynamo else "older"
    return (
        f"| {name} at {side}, {exporter}, {count} | {len(sweep.planned)} × {len(LEVELS)} | {opening:.1f} | "
        f"{measuring:.1f} | {share:.2f} | {plain / measuring:.2f} | {unlike} of {len(found)} | "
        f"{'yes' if share >= _WANTED and not unlike else 'no'} |"
    )


def whole_passes(sweep: Sweep, images: Tensor, spec: SensitivitySpec) -> list[LayerMeasurement]:
    """Measure the same by whole passes of the network."""
    context = sweep.context
    plain = Sweep.open(context.model, TensorImages(images), spec, task=CLASSIFICATION, layout=context.layout)
    plain.context.replay_obstacle = "Whole passes are compared."
    return list(plain.measure())


def differing(found: Iterable[LayerMeasurement], others: Iterable[LayerMeasurement]) -> int:
    """Return how many measurements have another figure."""
    return sum(
        (one.layer, one.level, one.changes) != (other.layer, other.level, other.changes)
        for one, other in zip(found, others, strict=True)
    )


def main() -> None:
    """Measure and write rows of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], default=[], help="all by default")
    parser.add_argument("--exporters", nargs="*", choices=("older", "newer"), default=("older",))
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12, help="at most how many, spread over the network")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    importlib.import_module("senseapp.metrics.intervals")  # with scipy, a second once
    for exporter in asked.exporters:
        for name in asked.networks or NETWORKS:
            row = measured(name, dynamo=exporter == "newer", count=asked.images, most_layers=asked.layers)
            print(row, flush=True)
            write_row(TITLE, HEAD, row)


if __name__ == "__main__":
    main()
