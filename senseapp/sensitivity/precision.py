"""Whether bfloat16 may stand in for float32: only where it is faster and ranks layers alike on a subset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from senseapp.errors import MeasurementFailed
from senseapp.evaluate import change_of, moments_of, spearman
from senseapp.sensitivity.layout import Layout
from senseapp.sensitivity.plan import PlannedTarget
from senseapp.sensitivity.replay import Replay
from senseapp.sensitivity.workbench import Workbench
from senseapp.transforms import Compressor

__all__ = ["choose_precision"]

_CHECKED_TARGETS = 8
_CHECKED_IMAGES = 8
_ENOUGH_AGREEMENT = 0.95
_ENOUGH_GAIN = 1.2


def choose_precision(
    bench: Workbench, compressor: Compressor, planned: Sequence[PlannedTarget], levels: Sequence[float]
) -> str:
    """Switch ``bench`` to bfloat16 if that is clearly faster and ranks a subset of the targets alike.

    Returns:
        One sentence that says what was decided, and why.
    """
    stop = min(_CHECKED_IMAGES, len(bench.images))
    single, half = bench.layout, replace(bench.layout, precision="bf16")
    gain = _seconds(bench, stop) / _seconds_in(bench, half, stop)
    if gain < _ENOUGH_GAIN:
        return f"Precision auto kept float32: bfloat16 is {gain:.1f} times as fast here, which is not worth it."
    step = max(1, -(-len(planned) // _CHECKED_TARGETS))
    subset = planned[::step]
    level = sorted(levels)[len(levels) // 2]
    bench.layout = single
    exact = _damages(bench, compressor, subset, level, stop)
    bench.layout = half
    agreement = spearman(exact, _damages(bench, compressor, subset, level, stop))
    if len(subset) >= 4 and agreement >= _ENOUGH_AGREEMENT:
        return (
            f"Precision auto took bfloat16: {gain:.1f} times as fast, and it ranks {len(subset)} layers like float32 "
            f"on {stop} images (Spearman {agreement:.2f})."
        )
    bench.layout = single
    return (
        f"Precision auto kept float32: on {stop} images bfloat16 ranks {len(subset)} layers differently "
        f"(Spearman {agreement:.2f}, wanted {_ENOUGH_AGREEMENT})."
    )


def _seconds(bench: Workbench, stop: int) -> float:
    bench.logits(0, 1)
    started = time.perf_counter()
    bench.logits(0, stop)
    return time.perf_counter() - started


def _seconds_in(bench: Workbench, layout: Layout, stop: int) -> float:
    bench.layout = layout
    return _seconds(bench, stop)


def _damages(
    bench: Workbench, compressor: Compressor, subset: Sequence[PlannedTarget], level: float, stop: int
) -> list[float]:
    """Return the KL divergence that ``level`` causes on each target of ``subset``, over the first images."""
    baseline = bench.logits(0, stop)
    replay, prefixes = Replay(bench.model, bench.trace), bench.prefixes(0, stop)
    damages = []
    for item in subset:
        if not bench.unsafe:
            bench.advance(replay, prefixes, item.position)
        try:
            with compressor.compress(item.target, level):
                logits = bench.logits(0, stop) if bench.unsafe else bench.resume(replay, prefixes)
        except MeasurementFailed:
            damages.append(float("nan"))
            continue
        damages.append(change_of("kl", moments_of("kl", baseline, logits, None)).delta)
    return damages
