"""What a worker does: prepare the model once, then measure blocks of targets on spans of images."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from senseapp.data import ImageSet
from senseapp.distributed.image_store import part_of
from senseapp.distributed.versions import differences, versions_here
from senseapp.errors import ClusterFailed
from senseapp.sensitivity.layout import Layout
from senseapp.sensitivity.plan import PlannedTarget
from senseapp.sensitivity.probe import Order, Outcome, Probe
from senseapp.sensitivity.sweep import CALIBRATION_IMAGES, Sweep, bind_compression
from senseapp.sensitivity.tally import Yardstick
from senseapp.sensitivity.workbench import Workbench
from senseapp.spec import SensitivitySpec
from senseapp.tasks import task_named


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """All that a worker needs to know of a run, but for the images.

    Attributes:
        model: on the CPU, unchanged.
        first_images: what data-driven criteria and activation ranges look at.
        spec: what to measure.
        task: what the model's output means.
        layout: how passes run everywhere.
        unsafe: why the model cannot be replayed; empty if it can.
        targets: layers, members and position of each, as :func:`described`; every worker must find the same.
        versions: of the machine that asks.
    """

    model: nn.Module
    first_images: ImageSet
    spec: SensitivitySpec
    task: str
    layout: Layout
    unsafe: str
    targets: tuple[tuple[tuple[str, ...], int], ...]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The uncompressed model's output on a span, float32 (n, ...), and the targets of the span's images, (n, ...)."""

    baseline: Tensor
    targets: Tensor | None
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePart:
    """What a worker found on a span: the output, float32 (n, ...), the seconds it took, where, and any notes."""

    output: Tensor
    seconds: float
    device: str
    notes: tuple[str, ...]


def described(planned: Sequence[PlannedTarget]) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Return what two machines must agree on."""
    return tuple((item.target.members, item.position) for item in planned)


def measure_baseline(probe: Probe, images: ImageSet) -> BaselinePart:
    """Return the uncompressed model's output for the images of a span."""
    probe.bench.images = images
    started = time.perf_counter()
    output = probe.baseline()
    seconds = time.perf_counter() - started
    return BaselinePart(output=output, seconds=seconds, device=str(probe.bench.device), notes=tuple(probe.notes))


def measure_block(
    probe: Probe, images: ImageSet, reference: Reference, orders: Sequence[Order]
) -> Iterator[Outcome | str]:
    """Yield the outcome of each order on the images of their span; sentences between them are notes."""
    probe.bench.images = images
    asked = {(order.index, order.level): order for order in orders}
    span = (0, len(images))
    yardstick = Yardstick(reference.baseline, reference.targets, reference.metrics)
    told = len(probe.notes)
    for outcome in probe.measure((replace(order, span=span) for order in orders), yardstick):
        yield from probe.notes[told:]
        told = len(probe.notes)
        yield replace(outcome, order=asked[outcome.order.index, outcome.order.level])


_prepared: dict[str, Probe] = {}


def probe_of(key: str, setup: Any) -> Probe:
    """Return this process's probe of a run, made on its first task; that of another run is let go.

    Args:
        key: names the run.
        setup: reference to its :class:`RunSetup`, in a list, so that it is fetched only where it is needed.
    """
    import ray

    if key not in _prepared:
        _prepared.clear()
        _prepared[key] = prepare(ray.get(setup[0]))
    return _prepared[key]


def baseline_task(key: str, setup: Any, images: ImageSet) -> BaselinePart:
    """Carry out :func:`measure_baseline` in a worker."""
    return measure_baseline(probe_of(key, setup), images)


def block_task(
    key: str, setup: Any, images: ImageSet, reference: Reference, orders: Sequence[Order]
) -> Iterator[Outcome | str]:
    """Carry out :func:`measure_block` in a worker."""
    yield from measure_block(probe_of(key, setup), images, reference, orders)


def prepare(setup: RunSetup) -> Probe:
    """Make this machine ready for a run.

    Raises:
        ClusterFailed: it has other versions than the machine that asks, or runs the model otherwise.
    """
    different = differences(setup.versions, versions_here())
    if different:
        raise ClusterFailed(
            f"A worker has other versions than the machine that asks ({different}), so its figures would not belong to "
            "the same run. Install the same requirements on every node."
        )
    bench = Workbench.prepare(
        setup.model, setup.first_images, device=setup.spec.device, own=True, task=task_named(setup.task)
    )
    bench.take(setup.layout)
    bench.unsafe = setup.unsafe
    compressor, planned = bind_compression(bench, setup.spec, setup.first_images)
    if described(planned) != setup.targets:
        raise ClusterFailed(
            "A worker runs the layers of this model in another order than the machine that asks, so their figures "
            "would not belong together. Measure this model on one machine."
        )
    return Probe(bench, compressor, planned, [])


def setup_of(sweep: Sweep) -> RunSetup:
    """Return what workers need to know of ``sweep``, on the machine that asks."""
    bench = sweep.bench
    model = bench.model if bench.device.type == "cpu" else copy.deepcopy(bench.model).cpu()
    return RunSetup(
        model=model,
        first_images=part_of(bench.images, 0, min(CALIBRATION_IMAGES, len(bench.images))),
        spec=sweep.spec,
        task=sweep.bench.task.name,
        layout=bench.layout,
        unsafe=bench.unsafe,
        targets=described(sweep.planned),
        versions=versions_here(),
    )
