"""One timed run of one tool in a process of its own; prints one JSON line.

    python -m benchmarks.worker TOOL MODEL COMPRESSION LEVELS [IMAGES]

Tools: ``fasterai`` (in its own environment), ``plain`` (our loop of whole passes), ``ours``, ``ours-auto``
(precision auto), ``quick`` (precision auto), ``floor`` (the sum of suffix passes), ``forward`` (one plain evaluation).
Imports are not timed; building the model and everything after it is.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from benchmarks.cases import BATCH_SIZE, LEVELS, images_of, model_of

Deltas = dict[str, list[float]]


def fasterai(case: str, compression: str, levels: int, images: int) -> Deltas:
    from fasterai.analyze.sensitivity import SensitivityAnalyzer

    model, (pictures, labels) = model_of(case), images_of(images)

    def loss(network: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(network(pictures), labels))

    analyzer = SensitivityAnalyzer(model, pictures[:1], loss, higher_is_better=False, metric_name="loss")
    found: Deltas = {}
    for level in LEVELS[compression][:levels]:
        shown = int(level) if compression == "quantization" else level
        for layer in analyzer.analyze(compression, shown, verbose=False).layers:
            found.setdefault(layer.name, []).append(layer.delta)
    return found


def _sweep(
    case: str, compression: str, levels: int, images: int, *, precision: str = "fp32", mode: str = "exact"
) -> Any:
    from senseapp.data import TensorImages
    from senseapp.sensitivity import Sweep
    from senseapp.spec import PruningConfig, QuantizationConfig, SensitivitySpec, SparsityConfig

    config = {"sparsity": SparsityConfig, "pruning": PruningConfig, "quantization": QuantizationConfig}[compression]()
    chosen = LEVELS[compression][:levels]
    inner = chosen if compression == "quantization" else tuple(level / 100 for level in chosen)
    pictures, labels = images_of(images)
    spec = SensitivitySpec(compression=config, levels=inner, precision=precision, mode=mode)
    return Sweep.open(model_of(case), TensorImages(pictures, labels), spec, own=True)


def ours(case: str, compression: str, levels: int, images: int, precision: str = "fp32") -> Deltas:
    sweep = _sweep(case, compression, levels, images, precision=precision)
    found: Deltas = {}
    for item in sweep.measure():
        change = item.change("loss")
        for member in item.members:
            found.setdefault(member, []).append(change.delta if change else float("nan"))
    return found


def quick(case: str, compression: str, levels: int, images: int) -> Deltas:
    from senseapp.sensitivity import quick_scan

    found: Deltas = {}
    for item in quick_scan(_sweep(case, compression, levels, images, precision="auto", mode="quick")):
        change = item.change("kl")
        found.setdefault(item.layer, []).append(change.delta if change else float("nan"))
    return found


def plain(case: str, compression: str, levels: int, images: int) -> Deltas:
    """Compress one layer, run the whole model in one batch in the default layout, restore, and so on."""
    from senseapp.sensitivity import Layout

    sweep = _sweep_with(case, compression, levels, images, Layout(micro_batch=BATCH_SIZE))
    sweep.bench.unsafe = "asked for the plain loop"
    return {item.layer: [change.delta] for item in sweep.measure() if (change := item.change("loss"))}


def _sweep_with(case: str, compression: str, levels: int, images: int, layout: Any) -> Any:
    sweep = _sweep(case, compression, levels, images)
    sweep.bench.take(layout)
    sweep.yardstick.baseline = sweep.bench.baseline()
    return sweep


def floor(case: str, compression: str, levels: int, images: int) -> Deltas:
    """Run, for each target, the part of the model after it, as often as there are levels; nothing else is timed."""
    from senseapp.sensitivity.replay import Replay

    sweep = _sweep(case, compression, levels, images)
    replay, prefixes, seconds = Replay(sweep.bench.model, sweep.bench.trace), sweep.bench.prefixes(0, images), 0.0
    for item in sweep.planned:
        sweep.bench.advance(replay, prefixes, item.position)
        started = time.perf_counter()
        for _ in range(levels):
            sweep.bench.resume(replay, prefixes)
        seconds += time.perf_counter() - started
    return {"seconds": [seconds]}


def forward(case: str, compression: str, levels: int, images: int) -> Deltas:
    model, (pictures, labels) = model_of(case), images_of(images)
    with torch.inference_mode():
        return {"loss": [float(F.cross_entropy(model(pictures[:BATCH_SIZE]), labels[:BATCH_SIZE]))]}


TOOLS: dict[str, Callable[..., Deltas]] = {
    "fasterai": fasterai,
    "floor": floor,
    "forward": forward,
    "ours": ours,
    "ours-auto": lambda *arguments: ours(*arguments, precision="auto"),
    "plain": plain,
    "quick": quick,
}


def main() -> None:
    tool, case, compression, levels, *rest = sys.argv[1:]
    images = int(rest[0]) if rest else 32
    # Imports are paid for before the clock starts.
    importlib.import_module("fasterai.analyze.sensitivity" if tool == "fasterai" else "senseapp.sensitivity")
    model_of(case)
    torch.randn(8, 8) @ torch.randn(8, 8)
    started, cpu = time.perf_counter(), time.process_time()
    deltas = TOOLS[tool](case, compression, int(levels), images)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    if tool == "floor":
        seconds = deltas["seconds"][0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak, "deltas": deltas}))


if __name__ == "__main__":
    main()
