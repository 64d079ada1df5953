"""Schedules for a budget of time on this machine: layers are timed, and no schedule is offered before its file was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.core.texts import plural
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.timed_widths import TimedWidths
from senseapp.reconstruct.write import onnx_copy
from senseapp.records.deployment import INT8_BITS, MILLISECONDS, LayerTimes
from senseapp.records.schedule import Limits, Schedule
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding, layers_of_nodes
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, time_ratio
from senseapp.runtimes.onnxruntime.timing import time_layers
from senseapp.solve.time_budget import schedule_within

_ROUNDS = 5


class Timed(Protocol):
    """A network whose layers are timed; what it does with schedules of its compression."""

    @property
    def times(self) -> LayerTimes:
        """How long its layers take."""
        ...

    @property
    def image(self) -> Tensor:
        """One call's input, (N, C, H, W)."""
        ...

    @property
    def threads(self) -> int:
        """That a call runs on."""
        ...

    def ratio(self, schedule: Schedule) -> float:
        """Return the time of the file of ``schedule`` as a multiple of the uncompressed one's, run in turns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedNetwork:
    """The network of a run as float ONNX, and how long its layers take.

    Attributes:
        network: the float file.
        image: one call's input, (N, C, H, W).
    """

    network: bytes
    times: LayerTimes
    writer: Int8Writer
    image: Tensor
    threads: int

    @classmethod
    @contextmanager
    def open(cls, evaluator: ScheduleEvaluator, *, threads: int = 1, batch: int = 1) -> Iterator[TimedNetwork]:
        """Write the uncompressed network of a run, and time its layers; its files are gone with the block."""
        image = evaluator.dense.batches(0, 1)[0].cpu()
        evaluator.progress("Writing the network as ONNX")
        network = onnx_copy(evaluator.dense.model, image)
        size = RuntimeModel(network).fixed_batch or batch
        with Int8Writer(network, evaluator.calibration(), rounding=Rounding()) as writer:
            evaluator.progress("Timing every layer in float and in int8")
            owners = layers_of_nodes(network, {layer.name for layer in evaluator.profile.layers})
            found = time_layers(network, writer.write(), owners, threads=threads, batch=size)
            shown = image[:1].expand(size, *image.shape[1:]).contiguous()
            yield cls(network=network, times=found, writer=writer, image=shown, threads=threads)

    def file(self, schedule: Schedule) -> bytes:
        """Return the file of a schedule of bits: float where it has more than 8, or nothing; int8 elsewhere."""
        int8 = {
            member
            for entry in schedule.entries
            if entry.compression != "none" and entry.level <= INT8_BITS
            for member in entry.members
        }
        owners = layers_of_nodes(self.network, self.times.layers())
        return (
            self.writer.write(but=[node for node, layer in owners.items() if layer not in int8])
            if int8
            else self.network
        )

    def ratio(self, schedule: Schedule) -> float:
        """Return the time of the file of ``schedule`` as a multiple of the float file's, run in turns."""
        return time_ratio(self.file(schedule), self.network, self.image, threads=self.threads)


def schedule_for_time(
    evaluator: ScheduleEvaluator,
    most_seconds: float,
    *,
    limits: Limits | None = None,
    threads: int = 1,
    batch: int = 1,
) -> Schedule:
    """Return the schedule of least damage whose file was measured to take at most ``most_seconds`` here.

    What layers take is measured first. A schedule whose file takes longer than that is solved again for less.

    Raises:
        InfeasibleBudget: nothing is as quick; ``nearest`` is the least time found, in milliseconds.
        InvalidSpec: onnxruntime does not accelerate this compression.
    """
    with open_timed(evaluator, threads=threads, batch=batch) as network:
        return measured_schedule(evaluator, network, most_seconds, limits)


def open_timed(evaluator: ScheduleEvaluator, *, threads: int = 1, batch: int = 1) -> AbstractContextManager[Timed]:
    """Time the network of a run at the levels of its compression.

    Raises:
        InvalidSpec: onnxruntime does not accelerate this compression.
    """
    compression = evaluator.result.compression.description
    if compression.zeroes_weights:
        raise InvalidSpec("Zeros save no time in onnxruntime: choose a run of quantization or pruning.")
    kind = TimedNetwork if compression.sets_bits else TimedWidths
    return kind.open(evaluator, threads=threads, batch=batch)


def measured_schedule(
    evaluator: ScheduleEvaluator, network: Timed, most_seconds: float, limits: Limits | None
) -> Schedule:
    """Return :func:`schedule_for_time` of a network whose layers are timed."""
    scale = evaluator.result.compression.scale
    real = network.times.other_seconds + sum(
        network.times.seconds(layer, scale.untouched, scale) for layer in network.times.layers()
    )
    asked, least = most_seconds, real
    for round_ in range(_ROUNDS):
        try:
            schedule = schedule_within(evaluator.result, network.times, asked, limits=limits)
        except InfeasibleBudget as error:
            if round_ == 0:
                raise
            raise _too_slow(most_seconds, least, real) from error
        if all(entry.compression == "none" for entry in schedule.entries):
            return schedule
        evaluator.progress(f"Measuring schedule {round_ + 1} of at most {_ROUNDS}")
        share = network.ratio(schedule)
        promised, found = schedule.achieved[MILLISECONDS] / 1000, share * real
        least = min(least, found)
        if found <= most_seconds and share < 1:
            return _with_measured(schedule, found, real, network.threads, len(network.image))
        asked = min(asked, promised) * min(0.98, most_seconds / found)
    raise _too_slow(most_seconds, least, real)


def _with_measured(schedule: Schedule, found: float, real: float, threads: int, batch: int) -> Schedule:
    note = (
        f"Measured: {1000 * found:.3g} ms, the original {1000 * real:.3g} ms in turns with it "
        f"({plural(batch, 'image')} a call, {plural(threads, 'thread')})."
    )
    return replace(schedule, achieved=schedule.achieved | {MILLISECONDS: 1000 * found}, notes=(note, *schedule.notes))


def _too_slow(asked: float, least: float, real: float) -> InfeasibleBudget:
    return InfeasibleBudget(
        f"No schedule was measured to take at most {1000 * asked:.3g} ms here: the quickest took {1000 * least:.3g}, "
        f"the original {1000 * real:.3g} ms.",
        nearest=1000 * least,
    )
