"""How much memory does a run on a dense network take in all? ``python -m benchmarks.dense.memory [--images N …]``.

A run of DeepLabV3 (MobileNetV3, 21 classes) on pictures of 520 x 520 pixels with masks from an archive, as the job of
the app and of the command line does it, with the environment of their processes. Its memory is the highest of the
whole process: interpreter and libraries, weights, pictures, masks, references, kept activations and a pass.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.results import write_row
from senseapp.core.process import measuring_environment
from senseapp.measure.session import Session
from senseapp.metrics.predictions import num_bytes
from senseapp.records.spec import DataSpec, Mode, ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import SEGMENTATION
from tests.pictures import encoded, write_zip

TITLE = "Dense networks: memory of a run (`python -m benchmarks.dense.memory`)"
HEAD = (
    "DeepLabV3 at 520 x 520 pixels, 21 classes, random weights, pictures and masks from an archive. Highest memory of "
    "the process that measures, in all; *libraries* is what it takes before it opens anything, *references* are the "
    "uncompressed model's predictions. Wanted: at most 1,500 MB at 256 images.",
    "",
    "| network, run | images | layers × levels | libraries, MB | references, MB | in all, MB | holds |",
    "|---|---|---|---|---|---|---|",
)
CLASSES, SIDE, WANTED_MB = 21, 520, 1500
LAYERS = {
    "deeplabv3_mobilenet_v3_large": ("backbone.7.block.0.0", "backbone.13.block.0.0", "classifier.0.convs.1.0"),
    "deeplabv3_resnet50": ("backbone.layer3.0.conv1", "backbone.layer4.0.conv1", "classifier.0.convs.1.0"),
}
"""Layers whose kept inputs are large, and one of several parallel branches."""
_CHILD = (
    "import sys; from senseapp.server.session import load_engine; load_engine(); "
    "from benchmarks.dense.memory import run; run(*sys.argv[1:])"
)
"""As the processes that measure do, it loads the engine before all else, which leaves torch's compiler out."""


def files(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield pictures of smooth noise and masks of class numbers, by path."""
    for number in range(count):
        generator = np.random.default_rng(number)
        coarse = Image.fromarray(generator.integers(0, 256, (26, 26, 3), np.uint8))
        classes = Image.fromarray(generator.integers(0, CLASSES, (13, 13), np.uint8))
        yield f"images/{number:04d}.jpg", encoded(coarse.resize((SIDE, SIDE)), "JPEG")
        yield f"masks/{number:04d}.png", encoded(classes.resize((SIDE, SIDE), Image.Resampling.NEAREST))


def highest() -> float:
    """Return the highest memory of this process so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()  # ru_maxrss counts the process before exec too
    return next(1024 * int(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM"))


def run(name: str, mode: Mode, archive: str, layers: str) -> None:
    """Measure, or estimate, some layers; print the memory of libraries, of references, and the highest."""
    torch.set_num_threads(1)
    libraries = highest()

    def report(sentence: str) -> None:
        print(f"{highest():.0f} MB: {sentence}", file=sys.stderr, flush=True)

    sensitivity = SensitivitySpec(levels=(0.5, 0.7), layers=LAYERS[name][-int(layers) :], mode=mode, device="cpu")
    model = ModelSpec(library="torchvision", name=name, num_classes=CLASSES, task=SEGMENTATION.name, img_size=SIDE)
    data = DataSpec(kind="archive", path=archive)
    session = Session.open(RunSpec(model=model, data=data, sensitivity=sensitivity), progress=report)
    report("Opened")
    estimates, found = [], []
    if mode == "quick":
        estimates = list(session.estimates())
        report("Estimated")
    for item in session.measure():
        report(f"{item.layer}, {item.level:g}: {item.status.value} in {item.seconds:.0f} s")
        found.append(item)
    result = session.result(found, estimates)
    assert len(result.estimates or result.measurements) >= 2 * int(layers)
    print(session.num_samples, libraries, num_bytes(session.sweep.baseline.outputs) / 1e6, highest(), sep="\t")


def measured(name: str, mode: Mode, count: int, layers: int) -> str:
    """Return the row of one run."""
    with tempfile.TemporaryDirectory() as folder:
        archive = write_zip(Path(folder) / "pictures.zip", dict(files(count)))
        command = [sys.executable, "-c", _CHILD, name, mode, str(archive), str(layers)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=measuring_environment())
    _, libraries, references, most = answer.stdout.strip().split("\t")
    holds = ("yes" if float(most) <= WANTED_MB else "**no**") if count >= 256 else ""
    return (
        f"| {name}, {mode} | {count} | {layers} × 2 | {float(libraries):.0f} | {float(references):.0f} | "
        f"{float(most):.0f} | {holds} |"
    )


def main() -> None:
    """Measure and write rows of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=tuple(LAYERS), default="deeplabv3_mobilenet_v3_large")
    parser.add_argument("--images", type=int, nargs="+", default=[256])
    parser.add_argument("--layers", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--mode", choices=("exact", "quick"), default="exact")
    asked = parser.parse_args()
    for count in asked.images:
        row = measured(asked.network, asked.mode, count, asked.layers)
        print(row, flush=True)
        write_row(TITLE, HEAD, row, named_by=2)


if __name__ == "__main__":
    main()
