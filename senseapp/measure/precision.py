"""Choice of bfloat16 over float32: only where it is faster and ranks layers alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from senseapp.compressions.base import Compressor
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.context import MeasurementContext
from senseapp.measure.measurer import MeasurementJob, Measurer
from senseapp.measure.plan import PlannedTarget, clock_of
from senseapp.metrics import METRICS
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec

_ENOUGH_AGREEMENT = 0.95  # Spearman correlation of the damage in both precisions
_ENOUGH_GAIN = 1.2  # below that the time saved is not worth a second rounding


def choose_precision(
    context: MeasurementContext, compressor: Compressor, planned: Sequence[PlannedTarget], spec: SensitivitySpec
) -> str:
    """Switch to bfloat16 if that is clearly faster and safe; return the decision and its reason as one sentence.

    It is safe for measurements if it ranks a subset of the targets alike, and for estimates if the compression
    changes more than bfloat16 rounds away.
    """
    gain = _product_gain(context.device)  # no tested network gains where products do not
    if gain < _ENOUGH_GAIN:
        return f"Precision auto kept float32: matrix products in bfloat16 are {gain:.1f} times as fast here."
    single, half = context.layout, replace(context.layout, precision="bf16")
    if spec.mode == "quick":
        # bfloat16 has 8 significant bits: on a finer grid than 4 its own rounding is not small beside the compression.
        if spec.compression.description.sets_bits and max(spec.levels) > 4:
            return "Precision auto kept float32: bfloat16 would hide what more than 4 bits change."
        context.take(half)
        return f"Precision auto took bfloat16 for the estimates: matrix products are {gain:.1f} times as fast."
    few = min(4, len(context.images))
    # Eight targets, spread over the network, show whether both precisions rank alike.
    chosen = range(0, len(planned), max(1, -(-len(planned) // 8)))
    level = sorted(spec.levels)[len(spec.levels) // 2]
    seconds, exact = _timed_damages(context, compressor, planned, chosen, level, few)
    context.layout = half
    half_seconds, rounded = _timed_damages(context, compressor, planned, chosen, level, few)
    context.layout = single
    gain, agreement = seconds / half_seconds, spearman(exact, rounded)
    if gain < _ENOUGH_GAIN:
        return f"Precision auto kept float32: bfloat16 is {gain:.1f} times as fast here, which is not worth it."
    if len(chosen) >= 4 and agreement >= _ENOUGH_AGREEMENT:
        context.take(half)
        return (
            f"Precision auto took bfloat16: {gain:.1f} times as fast, and it ranks {len(chosen)} layers like float32 "
            f"on {few} images (Spearman {agreement:.2f})."
        )
    return (
        f"Precision auto kept float32: on {few} images bfloat16 ranks {len(chosen)} layers differently "
        f"(Spearman {agreement:.2f}, wanted {_ENOUGH_AGREEMENT})."
    )


def _product_gain(device: torch.device) -> float:
    return _product_seconds(device, torch.float32) / _product_seconds(device, torch.bfloat16)


def _product_seconds(device: torch.device, dtype: torch.dtype) -> float:
    width = 384 if device.type == "cpu" else 4096  # about a millisecond
    factor = torch.ones(width, width, dtype=dtype, device=device)
    clock = clock_of(device)
    seconds = []
    for _ in range(6):  # the first one prepares the kernel
        started = clock()
        factor @ factor
        seconds.append(clock() - started)
    return min(seconds)


def _timed_damages(
    context: MeasurementContext,
    compressor: Compressor,
    planned: Sequence[PlannedTarget],
    chosen: Sequence[int],
    level: float,
    stop: int,
) -> tuple[float, list[float]]:
    """Return the seconds and the change of the divergence (or sqnr) of each ``chosen`` target on the first images."""
    name = context.task.divergence or "sqnr"
    baseline = BaselineOutputs(context.outputs(0, stop), None, (name,))  # which also prepares kernels and memory
    jobs = [MeasurementJob(index=index, level=level, span=(0, stop)) for index in chosen]
    clock = clock_of(context.device)
    started = clock()
    results = list(Measurer(context, compressor, planned, []).measure(jobs, baseline))
    seconds = clock() - started
    return seconds, [math.nan if found.reason else METRICS[name].change(found.moments[name]).delta for found in results]
