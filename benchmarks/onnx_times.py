"""How long does a pass of a network from an ONNX file take? ``python -m benchmarks.onnx_times [--only NAME ...]``.

Each architecture is exported by torch's two exporters and read again. The module and the network that is read take
turns with the same images, on one thread; the ratio is the median over pairs of the processor's time, which the other
load of a machine hardly changes.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.onnx_in import exported, network_of
from benchmarks.results import write_row
from senseapp.networks.onnx.open import open_onnx

TITLE = "A pass of networks from ONNX files (`python -m benchmarks.onnx_times`)"
CONVOLUTIONAL = ("resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "regnety_002", "convnext_atto")
TRANSFORMERS = ("vit_tiny_patch16_224", "test_vit", "swin_tiny_patch4_window7_224", "levit_128s")
_WANTED = {**dict.fromkeys(CONVOLUTIONAL, 1.15), **dict.fromkeys(TRANSFORMERS, 1.3)}
_IMAGES = 8
_HEAD = (
    "Eight images a pass, one thread, medians of pairs; a quarter and three quarters of the pairs in brackets.",
    "",
    "| network, exporter | wanted | file ÷ module | module, processor ms | reached |",
    "|---|---|---|---|---|",
)


def ratios(module: nn.Module, network: nn.Module, images: Tensor, pairs: int) -> tuple[list[float], float]:
    """Return the ratio of each pair of passes, ascending, and the median seconds of the module's."""
    found, own = [], []
    with torch.inference_mode():
        for _ in range(pairs + 1):
            taken = []
            for each in (module, network, network, module):  # so that a drift of the clock meets both alike
                started = time.process_time()
                each(images)
                taken.append(time.process_time() - started)
            found.append((taken[1] + taken[2]) / (taken[0] + taken[3]))
            own.append((taken[0] + taken[3]) / 2)
    return sorted(found[1:]), statistics.median(own[1:])


def line(name: str, *, dynamo: bool, pairs: int) -> str:
    """Return the row of one file."""
    module, side = network_of(name)
    network = open_onnx(exported(module, side, dynamo=dynamo, free=True)).network
    found, own = ratios(module, network, torch.rand(_IMAGES, 3, side, side), pairs)
    middle, wanted = statistics.median(found), _WANTED[name]
    spread = f"{found[len(found) // 4]:.2f} to {found[3 * len(found) // 4]:.2f}"
    exporter = "newer" if dynamo else "older"
    return (
        f"| {name}, {exporter} | ≤ {wanted} | {middle:.2f} ({spread}) | {1e3 * own:.0f} | "
        f"{'yes' if middle <= wanted else 'no'} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each file, and write its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=_WANTED, default=tuple(_WANTED))
    parser.add_argument("--exporters", nargs="*", choices=("older", "newer"), default=("older", "newer"))
    parser.add_argument("--pairs", type=int, default=15)
    asked = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for exporter in asked.exporters:
        for name in asked.only:
            write_row(TITLE, _HEAD, line(name, dynamo=exporter == "newer", pairs=asked.pairs))


if __name__ == "__main__":
    main()
