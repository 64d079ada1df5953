"""How forward passes run: memory layout, images at once, precision. Chosen by a short timed trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.layers import CallTrace

__all__ = ["Layout", "choose_layout", "lay_out", "micro_batches", "precision_context"]

# Outputs of one call that stay in the processor's caches make the next one faster.
_CACHE_BYTES = 48 * 2**20
_TRIAL_SHARE = 0.02
_CLEAR_GAIN = 0.93  # a difference within the noise keeps the earlier, usual choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How forward passes run.

    Attributes:
        channels_last: (N, H, W, C) in memory instead of (N, C, H, W).
        micro_batch: images in one pass.
        precision: ``fp32`` or ``bf16``.
    """

    channels_last: bool = False
    micro_batch: int = 16
    precision: str = "fp32"


def lay_out(model: nn.Module, layout: Layout) -> nn.Module:
    """Put the weights of ``model`` in place in the memory order of ``layout``; values stay the same."""
    order = torch.channels_last if layout.channels_last else torch.contiguous_format
    return model.to(memory_format=order)


def micro_batches(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive runs of at most ``size`` images."""
    for low in range(start, stop, size):
        yield low, min(low + size, stop)


def precision_context(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context that forward passes of ``precision`` run in.

    Autocast must not keep its casts of weights: it would not notice that they are swapped between passes.
    """
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def choose_layout(
    model: nn.Module,
    trace: CallTrace,
    images: Callable[[int], Tensor],
    *,
    most: int,
    forwards: float,
    has_convolutions: bool,
    device: torch.device,
) -> tuple[Layout, float]:
    """Try layouts and micro-batches on a few images and return the fastest, with its seconds per image.

    Args:
        model: the network; its memory order is changed by the trial.
        trace: a watched pass of it.
        images: returns that many images to try on, (n, C, H, W).
        most: the most images that one pass may take.
        forwards: how many whole forward passes per image the run will cost; at most a small share of that is
            spent on trying.
        has_convolutions: whether channels-last can matter.
        device: where the passes run.
    """
    base = _cached_batch(trace, most)
    sizes = sorted({base, min(2 * base, most), max(1, base // 2)}, key=lambda size: abs(size - base))
    orders = (True, False) if has_convolutions else (False,)
    candidates = [(order, size) for size in sizes for order in orders]
    spent, best, best_seconds = 0.0, Layout(channels_last=orders[0], micro_batch=base), float("inf")
    for order, size in candidates:
        allowed = _TRIAL_SHARE * forwards * most * best_seconds if best_seconds < float("inf") else float("inf")
        if spent > allowed:
            break
        layout = Layout(channels_last=order, micro_batch=size)
        batch = images(size).to(device)
        clock = _clock(device)
        started = clock()
        seconds = _seconds_per_image(lay_out(model, layout), batch, order, device)
        spent += clock() - started
        if seconds < _CLEAR_GAIN * best_seconds:
            best, best_seconds = layout, seconds
    return best, best_seconds


def _cached_batch(trace: CallTrace, most: int) -> int:
    largest = max((call.output_bytes for call in trace.calls), default=1) // trace.batch_size
    size = 1
    while size < 256 and 2 * size * largest <= _CACHE_BYTES:
        size *= 2
    return max(1, min(max(size, 4), most))


def _seconds_per_image(model: nn.Module, batch: Tensor, channels_last: bool, device: torch.device) -> float:
    if channels_last:
        batch = batch.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        model(batch)  # the first pass of a shape prepares kernels and memory
        clock = _clock(device)
        started = clock()
        model(batch)
        return (clock() - started) / len(batch)


def _clock(device: torch.device) -> Callable[[], float]:
    """Return what to time passes with: on the processor, its time for this process, whatever else is running."""
    if device.type == "cpu":
        return time.process_time
    return partial(_synchronized, device)


def _synchronized(device: torch.device) -> float:
    torch.accelerator.synchronize(device)
    return time.perf_counter()
