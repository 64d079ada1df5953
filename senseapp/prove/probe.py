"""Whether int8 pays on this machine, predicted for a network from its shapes before any file is made.

    time = Σ layers + Σ operations between them + what crosses the border at the input and the output

once with the seconds in float and once with those in int8, as the runtime took them alone on this machine
(:meth:`~senseapp.runtimes.base.Runtime.probe`). What was timed is kept for a month, by processor, runtime and threads,
so that the next network only times shapes that are new. The interval holds nine of ten networks of
``benchmarks/int8_pays.py``; on a busy machine, whose other programs interrupt long operations, it is wider, and nothing
is kept.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec, SenseError
from senseapp.core.files import DAY_SECONDS, home, replace_file
from senseapp.core.process import quiet
from senseapp.prove.file_times import FileTimes
from senseapp.records.probe import GlueVolume, Int8Prediction, LayerShape, PartTime, ProbedCosts
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.runtimes.base import Runtime

_BUSY = 1.5  # programs that want to run, for each processor
_BUSY_SPREAD = 2.0  # in place of _SPREAD on a busy machine, where other programs disturb timings
_SPREAD = 1.3  # nine of ten measured ratios are within this factor of the predicted one
_LEAST_KNOWN = 0.9  # of all multiply-accumulates: with less the layers that can be timed say little
_KEPT_SECONDS = 30 * DAY_SECONDS  # the machine and its software change within months
_MOST_KEPT = 5000  # shapes
_MOST_SHAPES = 150  # of one network, those with most multiply-accumulates
_COPIED_BYTES = 2**26  # 64 MB, beyond the caches of most processors
_COSTLY = 4  # layers named beside a prediction


def predict_int8(
    profile: ModelProfile, glue: Sequence[GlueVolume], runtime: Runtime, *, threads: int = 1, kept: Path | None = None
) -> Int8Prediction:
    """Return how long the network of ``profile`` will take in int8, as a multiple of float, one image a call.

    Args:
        profile: of the network.
        glue: its operations between layers, by :func:`~senseapp.networks.operations.glue_of`.
        runtime: that the files are for.
        threads: that a call runs on.
        kept: folder of earlier probes; by default that of the home, where there is one.

    Raises:
        InvalidSpec: the runtime cannot be probed, or most of the network is none of the layers that it can time.
    """
    layers = [layer for layer in profile.layers if layer.runs and layer.input_shape]
    largest = sorted(layers, key=lambda layer: -layer.macs)
    shapes = list(dict.fromkeys(map(_shape, largest)))[:_MOST_SHAPES]
    costs = _costs(shapes, glue, runtime, threads, _folder(kept))
    parts, known = _parts(profile, layers, glue, costs)
    if known < _LEAST_KNOWN * max(1, sum(layer.macs for layer in layers)):
        raise InvalidSpec("Most of this network is no layer whose int8 can be timed alone: measure a file instead.")
    crossing = costs.border_seconds * (math.prod(profile.input_shape) + max(1, profile.num_classes))
    real = sum(part.float_seconds for part in parts)
    whole = sum(part.int8_seconds for part in parts) + crossing
    share, spread = whole / real, _BUSY_SPREAD if is_busy() else _SPREAD
    return Int8Prediction(
        ratio=share,
        low=share / spread,
        high=share * spread,
        float_seconds=real,
        int8_seconds=whole,
        costly=tuple(sorted(parts, key=lambda part: -part.int8_seconds)[:_COSTLY]),
        machine=runtime.machine(),
        products=int8_products(),
        bytes_per_second=copied_per_second(),
    )


def try_int8(
    runtime: Runtime, network: bytes, images: Sequence[Tensor], *, threads: int = 1, batch: int = 1
) -> Int8Prediction:
    """Return how long a float file's network takes in int8: all of it, with ranges of a few ``images``, run in turns.

    Time depends on shapes and precisions only, so the file of a search that leaves nothing in float takes as long. It
    is timed as that is (:class:`~senseapp.prove.file_times.FileTimes`): in some moments on a shared machine, float was
    seen to take 1.8 times as long and int8 no longer.

    Raises:
        InvalidSpec: the runtime cannot write it in int8, or run it.
    """
    with runtime.quantizer(network, images) as quantizer:
        int8 = runtime.in_place(network, quantizer.write())
    part = images[0]
    fixed = runtime.open(network, threads=threads).fixed_batch
    call = part if fixed else part[:1].expand(batch, *part.shape[1:])
    times = FileTimes(runtime, network, call, threads=threads)
    share = times.anew(int8)
    return Int8Prediction(
        ratio=share.value,
        low=share.low,
        high=share.high,
        float_seconds=times.reference_seconds,
        int8_seconds=share.value * times.reference_seconds,
        costly=(),
        machine=runtime.machine(),
        products=int8_products(),
        bytes_per_second=copied_per_second(),
        from_file=True,
    )


def int8_products() -> str:
    """Return the instructions of this processor for products of 8 bits; empty where it has none."""
    found = torch.cpu.get_capabilities()
    names = {"amx_int8": "AMX", "avx512_vnni": "VNNI", "avx_vnni": "VNNI", "asimd_dot": "dot products"}
    return ", ".join(dict.fromkeys(name for flag, name in names.items() if found.get(flag)))


def copied_per_second() -> float:
    """Return the bytes that this machine's memory reads and writes per second, measured by a few copies."""
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    spent = []
    with quiet():
        for _ in range(5):
            began = time.perf_counter()
            np.copyto(target, source)
            spent.append(time.perf_counter() - began)
    return 2 * _COPIED_BYTES / min(spent)


def is_busy() -> bool:
    """Return whether more programs want to run than this machine has processors for, by half."""
    return os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)


def _shape(layer: LayerProfile) -> LayerShape:
    return LayerShape(input_shape=layer.input_shape, output_shape=layer.output_shape, weight=layer.weight_shape)


def _parts(
    profile: ModelProfile, layers: Sequence[LayerProfile], glue: Sequence[GlueVolume], costs: ProbedCosts
) -> tuple[list[PartTime], int]:
    """Return kinds of operations with their seconds in float and in int8, and the MACs of layers that were timed."""
    calls = Counter(node.name for node in profile.flow if node.kind == "layer")
    by_shape = {cost.shape: cost for cost in costs.layers}
    seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    known = 0
    for layer in layers:
        cost = by_shape.get(_shape(layer))
        if cost is None:
            continue
        known += layer.macs
        times = max(1, calls[layer.name])
        seconds[_kind(layer)][0] += times * cost.float_seconds
        seconds[_kind(layer)][1] += times * cost.int8_seconds
    rates = {cost.kind: cost for cost in costs.glue}
    for volume in glue:
        if rate := rates.get(volume.kind):
            seconds[volume.kind.replace("_", " ")][0] += volume.values * rate.float_seconds
            seconds[volume.kind.replace("_", " ")][1] += volume.values * rate.int8_seconds
    if not known:
        raise InvalidSpec("No layer of this network is one whose time in int8 can be taken alone.")
    parts = [PartTime(name=name, float_seconds=one, int8_seconds=other) for name, (one, other) in seconds.items()]
    return parts, known


def _kind(layer: LayerProfile) -> str:
    if not layer.weight_shape[2:]:
        return "linear layers"
    return "depthwise convolutions" if layer.weight_shape[1] == 1 < layer.weight_shape[0] else "convolutions"


# ---- what was timed before


def _costs(
    shapes: Iterable[LayerShape], glue: Sequence[GlueVolume], runtime: Runtime, threads: int, folder: Path | None
) -> ProbedCosts:
    """Return the costs of shapes and operations, of which those that are not kept are timed now."""
    file = (
        None
        if folder is None
        else folder / f"{hashlib.sha256(f'{runtime.machine()} {threads}'.encode()).hexdigest()[:16]}.json"
    )
    known = _read(file)
    asked = dict.fromkeys(shapes)
    new = [shape for shape in asked if shape not in {cost.shape for cost in known.layers}]
    kinds = [each.kind for each in glue if each.kind not in {cost.kind for cost in known.glue}]
    if not new and not kinds:
        return known
    found = runtime.probe(new, kinds, threads=threads)
    together = replace(
        known,
        layers=(*known.layers, *found.layers)[-_MOST_KEPT:],
        glue=(*known.glue, *found.glue),
        border_seconds=found.border_seconds or known.border_seconds,
    )
    if file is not None and not is_busy():
        with suppress(OSError, SenseError):  # what cannot be kept is timed again
            replace_file(file, dumps(together))
    return together


def _folder(kept: Path | None) -> Path | None:
    """Return the folder of earlier probes; None where there is no home to keep them in."""
    folder = home() / "probes" if kept is None else kept
    if not folder.parent.is_dir():
        return None
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return folder if folder.is_dir() else None


def _read(file: Path | None) -> ProbedCosts:
    nothing = ProbedCosts(layers=())
    if file is None or not file.is_file() or time.time() - file.stat().st_mtime > _KEPT_SECONDS:
        return nothing
    with suppress(OSError, ValueError, SenseError):
        return loads(file.read_bytes(), ProbedCosts)
    return nothing
