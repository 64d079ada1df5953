"""Time of an exact measurement against its floor: ``python -m benchmarks.dense.floor [NETWORK …]``.

The floor is the sum, over layers and levels, of the time of what depends on the changed layer: a plain pass without the
outermost module calls that come before the layer or do not depend on it, by the trace's data flow, then the reading of
the output and the metrics. Calls are timed one by one in plain passes, one after the measurements of each layer, in the
same process, so that both meet the same load; the time of a call is the median of its passes. Times are of the
processor, on one thread.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.dense.networks import names, network, opened, rectangles, with_statistics
from benchmarks.dense.yolo import YoloLike
from benchmarks.results import write_row
from senseapp.data.images import TensorImages
from senseapp.measure.measurer import Measurer
from senseapp.measure.plan import PlannedTarget
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import joined, stored
from senseapp.networks.trace import CallTrace, wrapped_forwards
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import TASKS

TITLE = "Dense networks: exact measurement against its floor (`python -m benchmarks.dense.floor`)"
LEVELS = (0.5, 0.7, 0.9)
YOLO = "YOLO-like"
CASES = {"lraspp_mobilenet_v3_large": 128, "ssdlite320_mobilenet_v3_large": 128, "fcos_resnet50_fpn": 64, YOLO: 128}
"""Networks and the sides of their images, in pixels."""
HEAD = (
    "Processor time on one thread, random weights with the statistics of the images. The floor has the clocks' own "
    "time and code outside modules in it, so it is not quite the least; it has no kept outputs to compute first. "
    "*Opening* is what comes before the first measurement: the trace, the trial of layouts, the uncompressed model, "
    "the checks.",
    "",
    "| network, images | layers × levels | opening, s | measuring, s | floor, s | measuring / floor | with opening | "
    "plain loop / floor |",
    "|---|---|---|---|---|---|---|---|",
)
now = time.process_time


@dataclass(slots=True)
class Passes:
    """Times of plain passes: of each call, of all of a pass, and of reading its output and comparing."""

    calls: list[list[float]] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)

    def add(self, sweep: Sweep) -> None:
        """Time one plain pass over all images."""
        context, spent = sweep.context, [0.0] * len(sweep.context.trace.calls)
        batches = context.batches(0, len(context.images))
        started = now()
        with torch.inference_mode(), wrapped_forwards(context.model, partial(_clocked, spent, [0])):
            outputs = [context.model(batch) for batch in batches]
        ended = now()
        with torch.inference_mode():
            predictions = joined([stored(context.read(each)) for each in outputs])
        sweep.baseline.moments(predictions, 0, len(context.images))
        self.calls.append(spent)
        self.whole.append(ended - started)
        self.reading.append(now() - ended)

    def floor_of(self, trace: CallTrace, item: PlannedTarget) -> float:
        """Return the time of what depends on a target at one level."""
        spent = [median(each) for each in zip(*self.calls, strict=True)]
        skipped = sum(spent[index] for index in _skippable(trace, item))
        return max(0.0, median(self.whole) - skipped) + median(self.reading)


def _clocked(
    spent: list[float], following: list[int], _name: str, _module: nn.Module, forward: Callable[..., Any]
) -> Callable[..., Any]:
    def clocked(*args: Any, **kwargs: Any) -> Any:
        index = following[0] % len(spent)  # the next batch makes the same calls
        following[0] += 1
        started = now()
        output = forward(*args, **kwargs)
        spent[index] += now() - started
        return output

    return clocked


def _skippable(trace: CallTrace, item: PlannedTarget) -> Iterator[int]:
    """Yield the outermost calls that come before a target or do not depend on it."""
    changed, index = trace.dependence.bits_of(item.target.modules), 0
    while index < len(trace.calls):
        call = trace.calls[index]
        skippable = call.end < item.position or (call.start >= item.position and not call.depends & changed)
        if skippable:
            yield index
        index = call.after if skippable else index + 1


def measured(name: str, count: int, most_layers: int | None) -> str:
    """Return the row of one network."""
    side = CASES[name]
    images = rectangles(0, count, side)[0]
    module = with_statistics(name, YoloLike() if name == YOLO else network(name, side), images)
    if name != YOLO:
        module = opened(name, module)
    task = TASKS["segmentation" if name in names("segmentation") else "detection"]
    layers = [each for each, part in module.named_modules() if isinstance(part, nn.Conv2d)]
    chosen = tuple(layers[:: max(1, len(layers) // (most_layers or len(layers)))])
    spec = SensitivitySpec(levels=LEVELS, num_samples=count, device="cpu", layers=chosen)
    started = now()
    sweep = Sweep.open(module, TensorImages(images), spec, task=task, own=True)
    opening, passes, spent = now() - started, Passes(), list[float]()
    assert sweep.context.replay_obstacle is None, sweep.context.replay_obstacle
    started = now()
    for _ in sweep.measure():
        spent.append(now() - started)
        if len(spent) % len(LEVELS) == 0:
            passes.add(sweep)
        started = now()
    floors = [passes.floor_of(sweep.context.trace, item) for item in sweep.planned]
    floor, measuring = len(LEVELS) * sum(floors), sum(spent)
    plain = len(spent) * (median(passes.whole) + median(passes.reading))
    followed = "" if _follows(sweep) else " (no parallel branch is kept)"
    return (
        f"| {name} at {side}, {count}{followed} | {len(sweep.planned)} × {len(LEVELS)} | {opening:.1f} | "
        f"{measuring:.1f} | {floor:.1f} | {measuring / floor:.2f} | {(measuring + opening) / floor:.2f} | "
        f"{plain / floor:.2f} |"
    )


def _follows(sweep: Sweep) -> bool:
    probe = getattr(sweep.executor, "_latest", None)
    return isinstance(probe, Measurer) and bool(probe._flow.of)


def main() -> None:
    """Measure and write rows of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--layers", type=int, help="about how many, spread over the network; default: all")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    importlib.import_module("senseapp.metrics.intervals")  # with scipy, a second once
    for name in asked.networks or CASES:
        row = measured(name, asked.images, asked.layers)
        print(row, flush=True)
        write_row(TITLE, HEAD, row)


if __name__ == "__main__":
    main()
