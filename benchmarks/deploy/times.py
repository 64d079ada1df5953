"""Whether files take as long as predicted, and what is offered for a budget of milliseconds keeps its promise.

One image, one thread; times are multiples of the float file's, made in turns. Weights are random: time does not depend
on them.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import timm
import torch
from torch import nn

from benchmarks.results import Row
from senseapp.core.errors import InfeasibleBudget
from senseapp.descriptions.levels import BitScale
from senseapp.prove.file_times import FileTimes
from senseapp.prove.timed import TimedNetwork, measured_schedule
from senseapp.reconstruct.write import onnx_model
from senseapp.records.deployment import MILLISECONDS, LayerTimes
from senseapp.records.schedule import Schedule
from senseapp.runtimes.call_times import times
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, layers_of_nodes
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.schedule_cases import run_of

_NETWORKS = ("tf_efficientnet_lite0", "resnet18", "mobilenetv3_small_100", "regnetx_002")
_SCHEDULES, _TURNS = 5, 21
_BUDGETS = {"tf_efficientnet_lite0": 16, "mobilenetv3_small_100": 17, "regnetx_002": 17}
_INT8 = 8
_MOST_SLOWER = 1.15  # than promised
_BITS = BitScale(noun="rounding", axis="Bits")


def rows() -> Iterator[Row]:
    """Yield how far predicted times are from measured ones, and which promises are broken."""
    errors: dict[str, list[float]] = {}
    promises: list[float | None] = []
    slower = 0
    for name in _NETWORKS:
        network = _timed(name)
        errors[name] = _errors(name, network)
        for offered in _promises(network, _BUDGETS.get(name, 0)):
            promises.append(offered and offered[0])
            slower += offered is not None and offered[1] > 1
    every = [error for found in errors.values() for error in found]
    by_network = ", ".join(f"{name} {100 * statistics.median(found):.1f} %" for name, found in errors.items())
    yield Row(
        what=f"Predicted time of a schedule of int8 and float against its file's, median error over {len(every)} "
        f"schedules of {len(errors)} networks",
        wanted="≤ 10 %",
        found=f"{100 * statistics.median(every):.1f} % (largest {100 * max(every):.0f} %; medians {by_network})",
        holds=statistics.median(every) <= 0.1,
    )
    made = [each for each in promises if each is not None]
    late = sum(each > _MOST_SLOWER for each in made)
    yield Row(
        what=f"Schedules for {len(promises)} budgets of milliseconds, their files timed again: slower than promised by "
        "more than 15 %, or offered though slower than float",
        wanted="0",
        found=f"{late} and {slower} of {len(made)} offered (median {statistics.median(made):.2f} of the promise, "
        f"largest {max(made):.2f}); {len(promises) - len(made)} refused with the least time",
        holds=late == slower == 0,
    )


@dataclass(frozen=True)
class _Case:
    """A network whose layers are timed, its float file and what writes it in int8."""

    timed: TimedNetwork
    content: bytes
    writer: Int8Writer

    @property
    def times(self) -> LayerTimes:
        return self.timed.times

    def in_int8(self, layers: Collection[str]) -> bytes:
        """Return the file with these layers in int8."""
        owners = layers_of_nodes(self.content, self.times.layers())
        return self.writer.write(but=[node for node, own in owners.items() if own not in layers])


def _timed(name: str) -> _Case:
    torch.manual_seed(0)
    network = timm.create_model(name).eval()
    images = torch.randn(2, 3, 224, 224)
    content = onnx_model(network, images)
    layers = {layer for layer, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    writer = Int8Writer(content, [images])
    times = OPERATIONS.time_layers(content, writer, layers_of_nodes(content, layers))

    def file(schedule: Schedule) -> bytes:
        return case.in_int8({layer for layer in times.layers() if schedule.level_of(layer) == _INT8})

    beside = FileTimes(OPERATIONS, content, images[:1], threads=1)
    case = _Case(TimedNetwork(times=times, image=images[:1], threads=1, beside=beside, file=file), content, writer)
    return case


def _errors(name: str, network: _Case) -> list[float]:
    chosen = list(_some_schedules(network.times))
    measured = _ratios(network, chosen)
    real = network.times.whole({}, _BITS, int8=())
    promised = [network.times.whole(dict.fromkeys(int8, 8.0), _BITS, int8=int8) / real for int8 in chosen]
    for int8, one, other in zip(chosen, promised, measured, strict=True):
        print(f"{name}: {len(int8)} layers in int8, predicted {one:.3f}, measured {other:.3f} of {1000 * real:.1f} ms")
    return [abs(one / other - 1) for one, other in zip(promised, measured, strict=True)]


def _ratios(network: _Case, chosen: Sequence[set[str]]) -> list[float]:
    """Return the times of files with these layers in int8, as multiples of the float file's."""
    opened = [RuntimeModel(file) for file in (network.content, *map(network.in_int8, chosen))]
    first, *spent = times(opened, network.timed.image, turns=_TURNS)
    return [statistics.median(np.array(each) / np.array(first)) for each in spent]


def _some_schedules(found: LayerTimes) -> Iterator[set[str]]:
    """Yield all layers in int8, parts of the network, and layers at random."""
    layers, generator = sorted(found.layers()), np.random.default_rng(0)
    yield set(layers)
    for index in range(_SCHEDULES - 1):
        first, last = sorted(generator.integers(0, len(layers), 2))
        share = generator.uniform(0.3, 0.9)
        yield {
            layer
            for place, layer in enumerate(layers)
            if (generator.random() < share if index % 2 else not first <= place <= last)
        }


def _promises(network: _Case, count: int) -> Iterator[tuple[float, float] | None]:
    """Yield, for budgets from less than all-int8 to more than float, time of what is offered, of promise and float."""
    layers = sorted(network.times.layers())
    real = network.times.whole({}, _BITS, int8=())
    least = network.times.whole(dict.fromkeys(layers, 8.0), _BITS, int8=layers)
    for index, share in enumerate(np.linspace(-0.1, 1.05, count) if count else ()):
        harm = np.random.default_rng(index).lognormal(-5, 2, len(layers))
        damages = {layer: (float(damage),) for layer, damage in zip(layers, harm, strict=True)}
        run = run_of(dict.fromkeys(layers, 1000), damages, (8.0,), compression="quantization")
        evaluator = SimpleNamespace(result=run, progress=lambda _step: None)
        budget = least + share * (real - least)
        try:
            made = measured_schedule(evaluator, network.timed, budget, None)  # type: ignore[arg-type]  # all it takes of one
        except InfeasibleBudget:
            yield None
            continue
        int8 = {layer for layer in layers if made.level_of(layer) == _INT8}
        if not int8:
            yield 1.0, 1.0
            continue
        (share_of_float,) = _ratios(network, [int8])
        promised = made.achieved[MILLISECONDS] / (1000 * real)
        print(f"budget {1000 * budget:.2f} ms: promised {promised:.3f} of float, again {share_of_float:.3f}")
        yield share_of_float / promised, share_of_float
