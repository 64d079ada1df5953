"""How many images, draws of directions and passes a quick scan takes: bounded by work and by memory, not by a clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from senseapp.measure.plan import memory_bytes
from senseapp.networks.network import images_per_pass

if TYPE_CHECKING:
    from senseapp.measure.sweep import Sweep

DIRECTIONS = 2  # random signs at the output: each is one backward pass
_MOST_MACS = 4e12  # of a scan, between the fewest and the most images: some minutes on two cores at most
_DRAWN = 512  # directions in all, where images are few and cost little
_GRAPH_BYTES = 3 * 2**28  # on a processor: more is hardly faster, and the first use of memory is slow


def passes(sweep: Sweep) -> int:
    """Return how many forward passes one draw for an image costs: forward, backward, and one for each level."""
    return 1 + DIRECTIONS + len(sweep.spec.levels)


def num_images(sweep: Sweep) -> int:
    """Return how many images are scanned."""
    affordable = int(_MOST_MACS / max(1, _macs(sweep) * passes(sweep)))
    # Whatever they cost, and however little: the error of a mean falls with the root of their number.
    return min(len(sweep.context.images), max(64, min(1024, affordable)))


def num_draws(sweep: Sweep, images: int, shape: Sequence[int]) -> int:
    """Return how often directions, of an output of ``shape``, are drawn for each of ``images``.

    The directions of pixels or boxes stand for thousands of numbers, so that one draw leaves the estimate of an image
    uncertain by about its own size: few images need several. Those of class scores are nearly complete, and estimates
    that measurements replace need no more.
    """
    if sweep.context.task.one_tensor or sweep.spec.mode != "quick":
        return 1
    # A number of the output costs as much as 4,000 multiplications, measured at 21 × 520 × 520 of them.
    cost = _macs(sweep) * passes(sweep) + 4000 * math.prod(shape)
    affordable = int(1e12 / (cost * images))  # a quarter of what images may cost
    return max(1, min(-(-_DRAWN // images), affordable))


def draws_share(sweep: Sweep, watched: Collection[str], draws: int) -> bool:
    """Return whether memory allows all draws of an image to share a forward pass, and one of each level."""
    return draws > 1 and _held_bytes(sweep, watched, draws) <= 2 * _graph_bytes(sweep)


def graph_batch(sweep: Sweep, watched: Collection[str] = (), draws: int = 1) -> int:
    """Return the images per pass, which ``draws`` share."""
    most = _graph_bytes(sweep) // max(1, _held_bytes(sweep, watched, draws))
    return max(1, min(sweep.context.layout.micro_batch * 2, most, images_per_pass(sweep.context.model) or most))


def _held_bytes(sweep: Sweep, watched: Collection[str], draws: int) -> int:
    """Return the bytes that a pass over one image holds: outputs, and gradients of all directions of a draw but one.

    Where draws share a pass, the changes of ``watched`` layers at each level are held too.
    """
    trace = sweep.context.trace
    kept = [c for c in trace.calls if c.after == c.index + 1 and not c.passes_on and not c.overwritten]
    held = DIRECTIONS * sum(call.output_bytes for call in kept)
    if draws > 1:
        held += len(sweep.spec.levels) * sum(call.output_bytes for call in trace.calls if call.module in watched)
    return held // trace.batch_size


def _graph_bytes(sweep: Sweep) -> int:
    device = sweep.context.device
    # On an H200, a sixteenth of its memory was five times as fast as 3 · 2²⁸ bytes.
    return _GRAPH_BYTES if device.type == "cpu" else memory_bytes(device) // 16


def _macs(sweep: Sweep) -> float:
    """Return the multiplications of a pass over one image."""
    return sum(use.macs for use in sweep.context.trace.uses.values()) / sweep.context.trace.batch_size
