"""How many images, draws of directions and passes a quick scan takes: bounded by work and by memory, not by a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def graph_batch(sweep: Sweep) -> int:
    """Return the images per pass, which holds outputs, and the gradients of all directions but one."""
    context, trace = sweep.context, sweep.context.trace
    kept = [c for c in trace.calls if c.after == c.index + 1 and not c.passes_on and not c.overwritten]
    held = DIRECTIONS * sum(call.output_bytes for call in kept) // trace.batch_size
    # On an H200, a sixteenth of its memory was five times as fast as 3 · 2²⁸ bytes.
    allowed = _GRAPH_BYTES if context.device.type == "cpu" else memory_bytes(context.device) // 16
    most = allowed // max(1, held)
    return max(1, min(context.layout.micro_batch * 2, most, images_per_pass(context.model) or most))


def _macs(sweep: Sweep) -> float:
    """Return the multiplications of a pass over one image."""
    return sum(use.macs for use in sweep.context.trace.uses.values()) / sweep.context.trace.batch_size
