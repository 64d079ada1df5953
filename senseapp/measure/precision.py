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

_TIMED_IMAGES = 2  # of the timed passes
_MOST_PASSES, _ENOUGH_SECONDS = 5, 0.1  # timed passes at most; fewer where together they take as long
_FEW_BITS = 4  # bfloat16 has 8 significant bits: on a finer grid its own rounding is not small beside the compression
_ENOUGH_AGREEMENT = 0.95  # Spearman correlation of the damage in both precisions
_ENOUGH_GAIN = 1.2  # below that the time saved is not worth a second rounding
# of a square product, which takes about a millisecond; timings of it, the fastest counts
_PRODUCT_WIDTH, _PRODUCT_WIDTH_ON_A_CARD, _PRODUCTS = 384, 4096, 5


def choose_precision(
    context: MeasurementContext, compressor: Compressor, planned: Sequence[PlannedTarget], spec: SensitivitySpec
) -> str:
    """Switch to bfloat16 if that is clearly faster and safe; return the decision and its reason as one sentence.

    It is safe for measurements if it ranks a subset of the targets alike, and for estimates if the compression
    changes more than bfloat16 rounds away.
    """
    gain = _product_gain(context.device)
    if gain < _ENOUGH_GAIN:
        return f"Precision auto kept float32: matrix products in bfloat16 are {gain:.1f} times as fast here."
    single, half = context.layout, replace(context.layout, precision="bf16")
    seconds = _seconds(context)
    context.layout = half
    gain = seconds / _seconds(context)
    context.layout = single
    if gain < _ENOUGH_GAIN:
        return f"Precision auto kept float32: bfloat16 is {gain:.1f} times as fast here, which is not worth it."
    if spec.mode == "quick":
        if spec.compression.description.sets_bits and max(spec.levels) > _FEW_BITS:
            return f"Precision auto kept float32: bfloat16 would hide what more than {_FEW_BITS} bits change."
        context.take(half)
        return f"Precision auto took bfloat16 for the estimates: {gain:.1f} times as fast."
    few = min(4, len(context.images))
    # Eight targets, spread over the network, show whether both precisions rank alike.
    chosen = range(0, len(planned), max(1, -(-len(planned) // 8)))
    level = sorted(spec.levels)[len(spec.levels) // 2]
    exact = _damages(context, compressor, planned, chosen, level, few)
    context.layout = half
    rounded = _damages(context, compressor, planned, chosen, level, few)
    context.layout = single
    agreement = spearman(exact, rounded)
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
    # Costs a hundredth of timed passes; no tested network gains where products do not.
    return _product_seconds(device, torch.float32) / _product_seconds(device, torch.bfloat16)


def _product_seconds(device: torch.device, dtype: torch.dtype) -> float:
    width = _PRODUCT_WIDTH if device.type == "cpu" else _PRODUCT_WIDTH_ON_A_CARD
    factor = torch.ones(width, width, dtype=dtype, device=device)
    clock = clock_of(device)
    seconds = []
    for _ in range(1 + _PRODUCTS):  # the first one prepares the kernel
        started = clock()
        factor @ factor
        seconds.append(clock() - started)
    return min(seconds)


def _seconds(context: MeasurementContext) -> float:
    """Return the seconds of a pass, the fastest of several if passes are short."""
    usual = _TIMED_IMAGES if context.device.type == "cpu" else context.layout.micro_batch  # few leave a card idle
    few = min(usual, len(context.images))
    clock = clock_of(context.device)
    context.outputs(0, few)  # prepares kernels and memory
    passes: list[float] = []
    while len(passes) < _MOST_PASSES and sum(passes) < _ENOUGH_SECONDS:
        started = clock()
        context.outputs(0, few)
        passes.append(clock() - started)
    return min(passes)


def _damages(
    context: MeasurementContext,
    compressor: Compressor,
    planned: Sequence[PlannedTarget],
    chosen: Sequence[int],
    level: float,
    stop: int,
) -> list[float]:
    """Return the change of the divergence (or sqnr) at ``level`` for each ``chosen`` target, on the first images."""
    name = context.task.divergence or "sqnr"
    baseline = BaselineOutputs(context.outputs(0, stop), None, (name,))
    jobs = [MeasurementJob(index=index, level=level, span=(0, stop)) for index in chosen]
    results = Measurer(context, compressor, planned, []).measure(jobs, baseline)
    return [math.nan if found.reason else METRICS[name].change(found.moments[name]).delta for found in results]
