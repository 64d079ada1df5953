"""One timed run of one tool in a process of its own; prints one JSON line.

    python -m benchmarks.worker TOOL MODEL COMPRESSION LEVELS [IMAGES [DEVICE]]

Tools: ``fasterai`` (in its own environment), ``notebook`` (ours through the interface of fasterai's notebook),
``plain`` (our loop of whole passes), ``ours``, ``ours-auto`` (precision auto),
``quick`` (precision auto), ``floor`` (the sum of suffix passes, one level each), ``forward`` (one plain evaluation).
All run on DEVICE (``cpu``), and clocks are read once it has done
what it was asked for. Imports, starting the device, and building the model and the images are not timed; everything
after that is, the copy to the device included.
The peak of memory is that of the process, or on a graphics card that of the card.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from benchmarks.cases import BATCH_SIZE, LEVELS, clock, images_of, model_of
from senseapp.tasks import CLASSIFICATION

Deltas = dict[str, list[float]]


@dataclass(frozen=True)
class Task:
    """What every tool is asked for."""

    model: torch.nn.Module
    pictures: torch.Tensor
    labels: torch.Tensor
    compression: str
    levels: int
    device: torch.device

    def on_device(self) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
        return self.model.to(self.device), self.pictures.to(self.device), self.labels.to(self.device)


def fasterai(task: Task) -> Deltas:
    from fasterai.analyze.sensitivity import SensitivityAnalyzer

    model, pictures, labels = task.on_device()

    def loss(network: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(network(pictures), labels))

    analyzer = SensitivityAnalyzer(model, pictures[:1], loss, higher_is_better=False, metric_name="loss")
    found: Deltas = {}
    for level in LEVELS[task.compression][: task.levels]:
        shown = int(level) if task.compression == "quantization" else level
        for layer in analyzer.analyze(task.compression, shown, verbose=False).layers:
            found.setdefault(layer.name, []).append(layer.delta)
    return found


def notebook(task: Task) -> Deltas:
    """Measure as in fasterai's notebook: any ``eval_fn``, here in two batches, and the model as the caller has it."""
    from senseapp import SensitivityAnalyzer

    model, pictures, labels = task.on_device()
    batches = list(zip(pictures.chunk(2), labels.chunk(2), strict=True))

    def loss(network: torch.nn.Module) -> float:
        return sum(float(F.cross_entropy(network(x), y)) for x, y in batches) / len(batches)

    analyzer = SensitivityAnalyzer(model, pictures[:1], loss, higher_is_better=False, metric_name="loss")
    found: Deltas = {}
    for result in analyzer.sweep(task.compression, LEVELS[task.compression][: task.levels], verbose=False):
        for layer in result.layers:
            found.setdefault(layer.name, []).append(layer.delta)
    return found


def _sweep(task: Task, *, precision: str = "fp32", mode: str = "exact") -> Any:
    from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
    from senseapp.data.images import TensorImages
    from senseapp.measure.sweep import Sweep
    from senseapp.records.spec import SensitivitySpec

    config = {"sparsity": SparsityConfig, "pruning": PruningConfig, "quantization": QuantizationConfig}[
        task.compression
    ]()
    chosen = LEVELS[task.compression][: task.levels]
    inner = chosen if task.compression == "quantization" else tuple(level / 100 for level in chosen)
    spec = SensitivitySpec(compression=config, levels=inner, precision=precision, mode=mode, device=str(task.device))
    return Sweep.open(task.model, TensorImages(task.pictures, task.labels), spec, own=True, task=CLASSIFICATION)


def ours(task: Task, *, precision: str = "fp32") -> Deltas:
    sweep = _sweep(task, precision=precision)
    found: Deltas = {}
    for item in sweep.measure():
        change = item.change("loss")
        for member in item.members:
            found.setdefault(member, []).append(change.delta if change else float("nan"))
    return found


def quick(task: Task) -> Deltas:
    from senseapp.measure.quick.scan import quick_scan

    found: Deltas = {}
    for item in quick_scan(_sweep(task, precision="auto", mode="quick")):
        change = item.change("kl")
        found.setdefault(item.layer, []).append(change.delta if change else float("nan"))
    return found


def plain(task: Task) -> Deltas:
    """Compress one layer, run the whole model in one batch in the default layout, restore, and so on."""
    from senseapp.measure.plan import Layout

    sweep = _sweep_with(task, Layout(micro_batch=BATCH_SIZE))
    sweep.context.replay_obstacle = "asked for the plain loop"
    return {item.layer: [change.delta] for item in sweep.measure() if (change := item.change("loss"))}


def _sweep_with(task: Task, layout: Any) -> Any:
    sweep = _sweep(task)
    sweep.context.take(layout)
    sweep.baseline.outputs = sweep.context.baseline()
    return sweep


def floor(task: Task) -> Deltas:
    """Run, for each target, the part of the model after it, as often as there are levels; nothing else is timed."""
    from senseapp.measure.replay import Replay

    sweep, now = _sweep(task), clock(task.device)
    replay, seconds = Replay(sweep.context.model, sweep.context.trace), 0.0
    prefixes = sweep.context.prefixes(0, len(task.pictures))
    for item in sweep.planned:
        sweep.context.advance(replay, prefixes, item.position)
        started = now()
        for _ in range(task.levels):
            sweep.context.resume(replay, prefixes)
        seconds += now() - started
    return {"seconds": [seconds]}


def forward(task: Task) -> Deltas:
    model, pictures, labels = task.on_device()
    with torch.inference_mode():
        return {"loss": [float(F.cross_entropy(model(pictures[:BATCH_SIZE]), labels[:BATCH_SIZE]))]}


TOOLS: dict[str, Callable[..., Deltas]] = {
    "fasterai": fasterai,
    "floor": floor,
    "forward": forward,
    "ours": ours,
    "notebook": notebook,
    "ours-auto": lambda task: ours(task, precision="auto"),
    "plain": plain,
    "quick": quick,
}


def main() -> None:
    tool, case, compression, levels, *rest = sys.argv[1:]
    images, device = [*rest, *("32", "cpu")[len(rest) :]]
    task = Task(model_of(case), *images_of(int(images)), compression, int(levels), torch.device(device))
    importlib.import_module("fasterai.analyze.sensitivity" if tool == "fasterai" else "senseapp.measure")
    torch.randn(8, 8, device=task.device) @ torch.randn(8, 8, device=task.device)
    now = clock(task.device)
    started, cpu = now(), time.process_time()
    deltas = TOOLS[tool](task)
    seconds, cpu_seconds = now() - started, time.process_time() - cpu
    if tool == "floor":
        seconds = deltas["seconds"][0]
    peak = _peak_bytes(task.device)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak, "deltas": deltas}))


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
