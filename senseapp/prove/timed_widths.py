"""How long each layer takes in onnxruntime on this machine with fewer channels: time has steps that MACs do not have.

The network is pruned to the same fraction everywhere, once for each level, and runs in onnxruntime as a whole, so a
layer's time is that with its inputs pruned as far as its outputs. Of schedules that mix levels, that is an estimate:
:func:`~senseapp.prove.timed.measured_schedule` runs the file of a schedule before it offers it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.reconstruct.write import onnx_copy
from senseapp.records.deployment import LayerTime, LayerTimes
from senseapp.records.schedule import Limits, Schedule
from senseapp.runtimes.onnxruntime.int8 import layers_of_nodes
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, machine, time_ratio, times
from senseapp.runtimes.onnxruntime.timing import time_products
from senseapp.solve.problem import assemble
from senseapp.solve.time_budget import any_problem

_TURNS = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWidths:
    """The network of a run of pruning as float ONNX, and how long its layers take at each level.

    Attributes:
        network: the uncompressed file.
        image: one call's input, (N, C, H, W).
    """

    evaluator: ScheduleEvaluator
    network: bytes
    times: LayerTimes
    image: Tensor
    threads: int

    @classmethod
    @contextmanager
    def open(cls, evaluator: ScheduleEvaluator, *, threads: int = 1, batch: int = 1) -> Iterator[TimedWidths]:
        """Write the network at every level of its run, and time it."""
        image = evaluator.dense.batches(0, 1)[0].cpu()
        scale = evaluator.result.compression.scale
        evaluator.progress("Writing the network as ONNX")
        files = {scale.untouched: onnx_copy(evaluator.dense.model, image)}
        for level in evaluator.result.levels:
            evaluator.progress(f"Timing every layer at {scale.text(level)}")
            files[level] = onnx_copy(evaluator.apply(_uniform(evaluator, level)).model, image)
        network = files[scale.untouched]
        size = RuntimeModel(network).fixed_batch or batch
        shown = image[:1].expand(size, *image.shape[1:]).contiguous()
        found = time_widths(files, {layer.name for layer in evaluator.profile.layers}, shown, threads=threads)
        yield cls(evaluator=evaluator, network=network, times=found, image=shown, threads=threads)

    def ratio(self, schedule: Schedule) -> float:
        """Return the time of the file of ``schedule`` as a multiple of the uncompressed one's, run in turns."""
        file = onnx_copy(self.evaluator.apply(schedule).model, self.image)
        return time_ratio(file, self.network, self.image, threads=self.threads)


def time_widths(files: Mapping[float, bytes], layers: set[str], image: Tensor, *, threads: int = 1) -> LayerTimes:
    """Return the times of ``layers`` in float ONNX ``files`` of one network, by level.

    What a file takes besides its products is shared out among them by their outputs, so the times of a network at one
    level everywhere add up to what that file takes.

    Raises:
        InvalidSpec: no layer is a product that can be timed.
    """
    opened = [RuntimeModel(content, threads=threads) for content in files.values()]
    walls = [statistics.median(spent) for spent in times(opened, image, turns=_TURNS)]
    found = []
    for (level, content), wall in zip(files.items(), walls, strict=True):
        seconds, rest = time_products(content, layers_of_nodes(content, layers), threads=threads, batch=len(image))
        whole = sum(spent for spent, _ in seconds.values()) + rest
        sizes = sum(size for _, size in seconds.values())
        found += [
            LayerTime(layer=layer, level=level, seconds=wall / whole * (spent + rest * size / sizes))
            for layer, (spent, size) in seconds.items()
        ]
    return LayerTimes(times=tuple(found), source=f"measured on {machine()}", measured_here=True)


def _uniform(evaluator: ScheduleEvaluator, level: float) -> Schedule:
    problem = any_problem(evaluator.result, Limits())
    levels = {curve.layer: level for curve in problem.curve_set.curves}
    return assemble(problem.curve_set, problem.accounting, levels, method="uniform")
