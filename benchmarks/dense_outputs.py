"""How much memory do the predictions of dense outputs take? ``python -m benchmarks.dense_outputs [--images N]``.

A network of one layer answers each image by 21 class scores for each of 520 x 520 pixels, as DeepLab does. An exact
run of one layer at two levels measures it; the memory is that of the process at its highest, above a run of 8 images.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.results import machine, write_section
from senseapp.data.images import TensorImages
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import num_bytes
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import SEGMENTATION

TITLE = "Predictions of dense outputs (`python -m benchmarks.dense_outputs`)"
CLASSES, SIDE = 21, 520
_WANTED_MB = 500


@dataclass(eq=False)
class Noise(TensorImages):
    """Images that are made when they are asked for, from their number."""

    def batch(self, start: int, stop: int) -> Tensor:
        """Return images ``start`` to ``stop``, float32 (n, 3, 520, 520)."""
        numbers = self.images[start:stop].long().flatten().tolist()
        return torch.stack([torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(n)) for n in numbers])

    def subset(self, indices: Sequence[int]) -> Noise:
        """Return the images at ``indices``."""
        return Noise(self.images[list(indices)])


def run(num_images: int) -> None:
    """Measure one layer; print the bytes of the predictions, and the highest memory of this process in bytes."""
    torch.manual_seed(0)
    spec = SensitivitySpec(levels=(0.5, 0.9), num_samples=num_images, device="cpu")
    images = Noise(torch.arange(num_images, dtype=torch.float32)[:, None])
    sweep = Sweep.open(nn.Sequential(nn.Conv2d(3, CLASSES, 1)), images, spec, task=SEGMENTATION)
    found = list(sweep.measure())
    assert len(found) == 2
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(num_bytes(sweep.baseline.outputs), peak, *sweep.notes, sep="\t")


def _measured(num_images: int) -> tuple[int, int, list[str]]:
    command = [sys.executable, "-m", "benchmarks.dense_outputs", "--child", str(num_images)]
    held, peak, *notes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().split("\t")
    return int(held), int(peak), notes


def main() -> None:
    """Measure and write the section of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        run(asked.child)
        return
    _, least, _ = _measured(8)
    held, peak, notes = _measured(asked.images)
    whole = 4 * asked.images * CLASSES * SIDE**2
    what = f"predictions of the uncompressed model, {asked.images} images, {CLASSES} x {SIDE} x {SIDE}"
    lines = [
        "| what | wanted | found | holds |",
        "|---|---|---|---|",
        f"| {what}: memory | at most {_WANTED_MB} MB | {held / 1e6:.0f} MB (all outputs: {whole / 1e6:,.0f} MB) | "
        f"{'yes' if held <= _WANTED_MB * 1e6 else '**no**'} |",
        f"| memory of the process at its highest, above a run of 8 images | | {(peak - least) / 1e6:.0f} MB | |",
        "",
        f"What the run says: {' '.join(notes)}",
        "",
        machine(),
    ]
    print("\n".join(lines))
    write_section(TITLE, lines)


if __name__ == "__main__":
    main()
