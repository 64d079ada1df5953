"""Worker side of a distributed run: its tasks, the images sent to them, and the order of results."""

import copy
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import ray
from torch import nn

from senseapp.compressions.base import Target
from senseapp.core.errors import ClusterFailed
from senseapp.data.images import ImageSet, PreparedImages, TensorImages
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.cluster.plan import Block
from senseapp.measure.context import MeasurementContext
from senseapp.measure.measurer import JobResult, MeasurementJob, Measurer, Span
from senseapp.measure.plan import Layout
from senseapp.measure.reuse import differences, versions_here
from senseapp.measure.sweep import CALIBRATION_IMAGES, Sweep, bind_compression
from senseapp.metrics.predictions import Predictions
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import task_named


def part_of(images: ImageSet, start: int, stop: int) -> ImageSet:
    """Return images ``start`` to ``stop`` without labels, names and data shared with the other images.

    Pictures are sent as bytes and normalised by the worker: a quarter of the size of float32.
    """
    if isinstance(images, PreparedImages):
        return PreparedImages(images.pixels[images.rows[start:stop]], images.preprocessing)
    return TensorImages(images.batch(start, stop).clone())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Description of a run for workers, without images; each worker must derive ``targets`` of equal positions."""

    model: nn.Module
    first_images: ImageSet
    spec: SensitivitySpec
    task: str
    prediction_bytes: int
    layout: Layout
    further_uses: dict[str, int]
    targets: tuple[tuple[Target, int], ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePart:
    """Baseline of one span: predictions, seconds, device and notes.

    ``obstacle`` is why the span cannot be replayed; None if it can.
    """

    output: Predictions
    seconds: float
    device: str
    notes: tuple[str, ...]
    obstacle: str | None = None


_prepared: dict[str, Measurer] = {}


def probe_of(key: str, setup: Any) -> Measurer:
    """Return this process's measurer of the run ``key``, built on its first task; releases that of another run.

    ``setup`` is a list of one reference to a :class:`RunSetup`, so that it is fetched only where it is needed.
    """
    if key not in _prepared:
        _prepared.clear()
        _prepared[key] = prepare(ray.get(setup[0]))
    return _prepared[key]


def baseline_task(key: str, setup: Any, images: ImageSet) -> BaselinePart:
    """Return the uncompressed model's predictions of a span, in a worker."""
    measurer = probe_of(key, setup)
    measurer.context.images = images
    started = time.perf_counter()
    output = measurer.baseline([(0, len(images))])
    return BaselinePart(
        output=output,
        seconds=time.perf_counter() - started,
        device=str(measurer.context.device),
        notes=tuple(measurer.notes),
        obstacle=measurer.context.replay_obstacle,
    )


def block_task(
    key: str,
    setup: Any,
    images: ImageSet,
    baseline: BaselineOutputs,
    jobs: Sequence[MeasurementJob],
    obstacle: str | None,
) -> tuple[list[JobResult], list[str]]:
    """Return the result of each job on the images of its span, and new notes, in a worker.

    ``obstacle`` is why some span of the run cannot be replayed; None if all can.
    """
    measurer = probe_of(key, setup)
    measurer.context.images = images
    measurer.context.replay_obstacle = measurer.context.replay_obstacle or obstacle
    told, span = len(measurer.notes), (0, len(images))
    found = measurer.measure((replace(job, span=span) for job in jobs), baseline)
    return [replace(result, job=job) for job, result in zip(jobs, found, strict=True)], measurer.notes[told:]


def prepare(setup: RunSetup) -> Measurer:
    """Prepare this machine for a run.

    Raises ClusterFailed if the library versions or the order of the layers differ from the driver's.
    """
    different = differences(setup.versions, versions_here())
    if different:
        raise ClusterFailed(
            f"A worker has other versions than the machine that started the run ({different}), so its figures would "
            "not be comparable. Install the same requirements on every node."
        )
    context = MeasurementContext.prepare(
        setup.model, setup.first_images, device=setup.spec.device, own=True, task=task_named(setup.task)
    )
    context.prediction_bytes = setup.prediction_bytes
    context.take(setup.layout)
    context.admit(setup.further_uses)
    compressor, planned = bind_compression(context, setup.spec, setup.first_images)
    if tuple((item.target, item.position) for item in planned) != setup.targets:
        raise ClusterFailed(
            "A worker runs the layers of this model in another order than the machine that started the run, so their "
            "figures would not be comparable. Measure this model on one machine."
        )
    return Measurer(context, compressor, planned, [])


def setup_of(sweep: Sweep) -> RunSetup:
    """Return the description of ``sweep`` for the workers, on the driver."""
    context = sweep.context
    model = context.model if context.device.type == "cpu" else copy.deepcopy(context.model).cpu()
    return RunSetup(
        model=model,
        first_images=part_of(context.images, 0, min(CALIBRATION_IMAGES, len(context.images))),
        spec=sweep.spec,
        task=sweep.context.task.name,
        prediction_bytes=context.prediction_bytes,
        layout=context.layout,
        further_uses=context.trace.used_by_others,
        targets=tuple((item.target, item.position) for item in sweep.planned),
        versions=versions_here(),
    )


Task = tuple[int, int]
"""A block of layers, and how many tasks of it were issued before."""


def tasks_of(
    jobs: Iterable[MeasurementJob], blocks: Sequence[Block]
) -> Iterator[tuple[Task, Span, tuple[MeasurementJob, ...]]]:
    """Yield the tasks of ``jobs``, which are ordered by span, then by target: some jobs of one block on one span."""
    of_target = {index: number for number, block in enumerate(blocks) for index in range(*block)}
    issued: Counter[int] = Counter()
    for (span, block), group in groupby(jobs, key=lambda job: (job.span, of_target[job.index])):
        yield (block, issued[block]), span, tuple(group)
        issued[block] += 1


def in_order(finished: Iterable[tuple[Task, Sequence[JobResult]]]) -> Iterator[JobResult]:
    """Yield the results of tasks; those of a task once all earlier tasks of the same block have finished."""
    held: dict[Task, Sequence[JobResult]] = {}
    due: Counter[int] = Counter()
    for task, results in finished:
        held[task], block = results, task[0]
        while (block, due[block]) in held:
            yield from held.pop((block, due[block]))
            due[block] += 1
