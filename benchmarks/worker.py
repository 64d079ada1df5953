"""One timed run of one tool in a process of its own; prints one JSON line: ``python -m benchmarks.worker TOOL MODEL``.

Tools: ``fasterai`` (in its own environment), ``plain`` (our loop of whole passes), ``ours``, ``forward`` (one plain
evaluation). Imports and building the model and the images are not timed; everything after that is. The peak of memory
is that of the process.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import NUM_IMAGES, ZEROS, images, model_of

Deltas = dict[str, float]
"""The change of the loss by layer."""


def fasterai(model: nn.Module, pictures: Tensor, labels: Tensor) -> Deltas:
    from fasterai.analyze.sensitivity import SensitivityAnalyzer

    def loss(network: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(network(pictures), labels))

    analyzer = SensitivityAnalyzer(model, pictures[:1], loss, higher_is_better=False, metric_name="loss")
    return {layer.name: layer.delta for layer in analyzer.analyze("sparsity", float(ZEROS), verbose=False).layers}


def _sweep(model: nn.Module, pictures: Tensor, labels: Tensor) -> Any:
    from senseapp.compressions import SparsityConfig
    from senseapp.data.images import TensorImages
    from senseapp.measure.sweep import Sweep
    from senseapp.records.spec import SensitivitySpec
    from senseapp.tasks import CLASSIFICATION

    spec = SensitivitySpec(compression=SparsityConfig(), levels=(ZEROS / 100,), precision="fp32", device="cpu")
    return Sweep.open(model, TensorImages(pictures, labels), spec, own=True, task=CLASSIFICATION)


def _measured(sweep: Any) -> Deltas:
    return {item.layer: change.delta for item in sweep.measure() if (change := item.change("loss"))}


def ours(model: nn.Module, pictures: Tensor, labels: Tensor) -> Deltas:
    return _measured(_sweep(model, pictures, labels))


def plain(model: nn.Module, pictures: Tensor, labels: Tensor) -> Deltas:
    """Compress one layer, run the whole model in one batch in the default layout, restore, and so on."""
    from senseapp.measure.plan import Layout

    sweep = _sweep(model, pictures, labels)
    sweep.context.take(Layout(micro_batch=NUM_IMAGES))
    sweep.baseline.outputs = sweep.context.baseline()
    sweep.context.replay_obstacle = "asked for the plain loop"
    return _measured(sweep)


def forward(model: nn.Module, pictures: Tensor, labels: Tensor) -> Deltas:
    with torch.inference_mode():
        return {"": float(F.cross_entropy(model(pictures), labels))}


TOOLS = {"fasterai": fasterai, "forward": forward, "ours": ours, "plain": plain}


def main() -> None:
    tool, case = sys.argv[1:]
    model, (pictures, labels) = model_of(case), images()
    importlib.import_module("fasterai.analyze.sensitivity" if tool == "fasterai" else "senseapp.measure")
    started = time.perf_counter()
    deltas = TOOLS[tool](model, pictures, labels)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "deltas": deltas}))


if __name__ == "__main__":
    main()
