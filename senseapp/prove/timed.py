"""Schedules for a budget of time in a runtime on this machine: layers are timed, and so is each file that is offered.

With fewer channels, time has steps that MACs do not have, so the time of a layer is that in a file of one level
everywhere: of schedules that mix levels, an estimate.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.core.texts import plural
from senseapp.descriptions import Effect
from senseapp.formats.base import levels_by_layer
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.file_times import FileTimes, call_of
from senseapp.records.deployment import INT8_BITS, MILLISECONDS, LayerTime, LayerTimes, Median
from senseapp.records.schedule import Limits, Schedule
from senseapp.runtimes.base import Runtime
from senseapp.solve.problem import assemble
from senseapp.solve.time_budget import any_problem, schedule_within

_ROUNDS = 5  # schedules for a time; each corrects the budget by what the last one took


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedNetwork:
    """The network of a run as a float file, and how long its layers take at the levels of its compression.

    A call takes ``image``, (N, C, H, W), and runs on ``threads``. ``beside`` are times of files beside the uncompressed
    one's; ``file`` returns the file of a schedule.
    """

    times: LayerTimes
    image: Tensor
    threads: int
    beside: FileTimes
    file: Callable[[Schedule], bytes]

    def ratio(self, schedule: Schedule) -> Median:
        """Return the time of the file of ``schedule`` as a multiple of the uncompressed one's, both opened anew."""
        return self.beside.measure_precise(self.file(schedule))


def _with_bits(
    evaluator: ScheduleEvaluator, runtime: Runtime, network: bytes, image: Tensor, threads: int
) -> tuple[LayerTimes, Callable[[Schedule], bytes]]:
    """Return the times of layers in float and in int8, and what writes the file of a schedule of bits."""
    quantizer = runtime.quantizer(network, evaluator.calibration())
    evaluator.progress("Timing every layer in float and in int8")
    owners = runtime.layers_of_nodes(network, {layer.name for layer in evaluator.profile.layers})
    times = runtime.time_layers(network, quantizer, owners, threads=threads, batch=len(image))
    timed = {node: layer for node, layer in owners.items() if layer in times.layers()}

    def file(schedule: Schedule) -> bytes:
        """Return it: float where a layer has more than 8 bits, or nothing; int8 elsewhere."""
        int8 = {layer for layer, bits in levels_by_layer(schedule, Effect.BITS).items() if bits <= INT8_BITS}
        if not int8:
            return network
        in_float = [node for node, layer in timed.items() if layer not in int8]
        return runtime.in_place(network, quantizer.write(but=in_float))

    return times, file


def _with_widths(
    evaluator: ScheduleEvaluator, runtime: Runtime, network: bytes, image: Tensor, threads: int
) -> tuple[LayerTimes, Callable[[Schedule], bytes]]:
    """Return the times of layers at every level of a run of pruning, and what writes the file of a schedule."""
    scale, exporter = evaluator.result.compression.scale, evaluator.exporter(runtime)
    files, problem = {scale.untouched: network}, any_problem(evaluator.result, Limits())
    for level in evaluator.result.levels:
        evaluator.progress(f"Timing every layer at {scale.text(level)}")
        levels = {curve.layer: level for curve in problem.curve_set.curves}
        uniform = assemble(problem.curve_set, problem.accounting, levels, method="uniform")
        files[level] = exporter(evaluator.apply(uniform).model)
    layers = {layer.name for layer in evaluator.profile.layers}
    times = time_widths(runtime, files, layers, image, threads=threads)
    return times, lambda schedule: exporter(evaluator.apply(schedule).model)


def time_widths(
    runtime: Runtime, files: Mapping[float, bytes], layers: set[str], image: Tensor, *, threads: int = 1
) -> LayerTimes:
    """Return the times of ``layers`` in float ``files`` of one network, by level.

    What a file takes besides its products is shared out among them, so the times of a network at one level everywhere
    add up to what that file takes.

    Raises InvalidSpec if no layer is a product that can be timed.
    """
    opened = [runtime.open(content, threads=threads) for content in files.values()]
    # calls of each file: odd, so that the median is one of them
    walls = [statistics.median(spent) for spent in runtime.times(opened, image, turns=21)]
    found = []
    for (level, content), wall in zip(files.items(), walls, strict=True):
        owners = runtime.layers_of_nodes(content, layers)
        times = runtime.time_layers(content, None, owners, threads=threads, batch=len(image)).times
        whole = sum(each.seconds for each in times)
        found += [LayerTime(layer=each.layer, level=level, seconds=wall * each.seconds / whole) for each in times]
    return LayerTimes(times=tuple(found), source=f"measured on {runtime.machine()}")


def schedule_for_time(
    evaluator: ScheduleEvaluator,
    runtime: Runtime,
    most_seconds: float,
    *,
    limits: Limits | None = None,
    threads: int = 1,
    batch: int = 1,
) -> Schedule:
    """Return the schedule of least damage whose file was measured to take at most ``most_seconds`` here.

    What layers take is measured first. A schedule whose file takes longer than that is solved again for less, and so is
    one whose file is not quicker than the original with all of its interval: one timing of several is short by chance.

    Raises InfeasibleBudget if nothing is as quick (``nearest`` is the least time found, in milliseconds), InvalidSpec
    if the runtime does not accelerate this compression.
    """
    network = open_timed(evaluator, runtime, threads=threads, batch=batch)
    return measured_schedule(evaluator, network, most_seconds, limits)


def open_timed(evaluator: ScheduleEvaluator, runtime: Runtime, *, threads: int = 1, batch: int = 1) -> TimedNetwork:
    """Time the network of a run at the levels of its compression.

    Raises InvalidSpec if the runtime does not accelerate this compression.
    """
    compression = evaluator.result.compression.description
    if compression.zeroes_weights:
        raise InvalidSpec(
            f"Zeros save no time in {runtime.description.label}: choose a run of quantization or pruning."
        )
    network = evaluator.original_file(runtime)
    image = call_of(evaluator, runtime.open(network).fixed_batch or batch)
    timed = _with_bits if compression.sets_bits else _with_widths
    times, file = timed(evaluator, runtime, network, image, threads)
    beside = FileTimes(runtime, network, image, threads=threads)
    return TimedNetwork(times=times, image=image, threads=threads, beside=beside, file=file)


def measured_schedule(
    evaluator: ScheduleEvaluator, network: TimedNetwork, most_seconds: float, limits: Limits | None
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
        except InfeasibleBudget:
            if round_ == 0:
                raise
            break
        if all(entry.compression == "none" for entry in schedule.entries):
            return schedule
        evaluator.progress(f"Measuring schedule {round_ + 1} of at most {_ROUNDS}")
        share = network.ratio(schedule)
        promised, found = schedule.achieved[MILLISECONDS] / 1000, share.value * real
        least = min(least, found)
        if found <= most_seconds and share.high < 1:
            batch, threads = plural(len(network.image), "image"), plural(network.threads, "thread")
            told = f"Measured: {1000 * found:.3g} ms, the original {1000 * real:.3g} ms in turns with it"
            notes = (f"{told} ({batch} a call, {threads}).", *schedule.notes)
            return replace(schedule, achieved=schedule.achieved | {MILLISECONDS: 1000 * found}, notes=notes)
        asked = min(asked, promised) * min(0.98, most_seconds / found)
    raise InfeasibleBudget(
        f"No schedule was measured to take at most {1000 * most_seconds:.3g} ms here: the quickest took "
        f"{1000 * least:.3g}, the original {1000 * real:.3g} ms.",
        nearest=1000 * least,
    )
