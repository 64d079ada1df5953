"""Which outputs the pass over the uncompressed model leaves behind, so that prefixes need not compute them again.

A prefix walks from one target to the next and computes what lies between. The whole pass that measures the
uncompressed model has computed all of that before. What lies between two neighbours is a segment; all that is kept of
it is what :meth:`Prefix.keep` would keep at its end, so a segment is recorded as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from senseapp.layers import Call, CallTrace


@dataclass(frozen=True, slots=True)
class _Segment:
    """What lies between two neighbouring positions.

    Attributes:
        calls: by index, whether the output's data is needed at the segment's end; otherwise its shape does.
        bytes_per_image: of what is needed.
        macs: multiply-accumulates that a recording saves.
    """

    calls: dict[int, bool]
    bytes_per_image: float
    macs: int


def calls_to_record(
    trace: CallTrace, positions: Sequence[int], *, num_images: int, budget_bytes: int
) -> Mapping[int, bool]:
    """Choose what to record of a whole pass, most work per byte first.

    Args:
        trace: of the model.
        positions: events that prefixes will stop at, in any order.
        num_images: in the pass.
        budget_bytes: the most that everything recorded may hold.

    Returns:
        The calls to record by index, and for each whether its data is needed, or only its shape.
    """
    stops = sorted({0, *positions})
    segments = [_segment(trace, start, stop) for start, stop in pairwise(stops)]
    chosen: dict[int, bool] = {}
    left = budget_bytes / num_images
    for segment in sorted(segments, key=lambda one: one.bytes_per_image / max(one.macs, 1)):
        if segment.bytes_per_image <= left:
            left -= segment.bytes_per_image
            chosen |= segment.calls
    return chosen


def _segment(trace: CallTrace, start: int, stop: int) -> _Segment:
    ended = [call for call in trace.calls if start <= call.end < stop and _is_outermost(trace, call, stop)]
    needed = {call.index: call.last_needed >= stop for call in ended}
    held = sum(call.output_bytes for call in ended if needed[call.index])
    macs = sum(use.macs for use in trace.uses.values() if start <= use.first_event < stop)
    return _Segment(needed, held / trace.batch_size, macs)


def _is_outermost(trace: CallTrace, call: Call, stop: int) -> bool:
    return call.parent < 0 or trace.calls[call.parent].end >= stop
