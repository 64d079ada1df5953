"""Kept outputs of a forward pass up to some event, so that only the rest is computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from senseapp.compat.torch_internals import UnreadableTensor, version_of
from senseapp.networks.trace import Call, CallTrace, map_tensors, tensors_in


class ReplayMismatch(BaseException):
    """These images make the model run differently from the traced pass, so that it cannot be replayed.

    A BaseException, so that no ``except`` clause of the model catches it.
    """


def _placeholder(tensor: Tensor) -> Tensor:
    """Return a tensor of this shape without storage; reading it raises ReplayMismatch."""
    return UnreadableTensor.like(tensor, _read_again)


def _read_again() -> ReplayMismatch:
    return ReplayMismatch("some images read an output again that those that were watched did not")


class Prefix:
    """Kept outputs of one batch: of the calls that ended before :attr:`position` and whose parent has not ended.

    An output that only skipped calls read is kept as a shape without storage. A whole pass over the batch may have
    recorded the outputs of calls after the position, see :meth:`record`; and passes that continued from the position
    those of calls that do not depend on what was changed then, see :meth:`share`.
    """

    def __init__(self, trace: CallTrace, inputs: Tensor) -> None:
        self.position = 0
        self._trace = trace
        self._inputs = inputs
        self._outputs: dict[int, Any] = {}
        self._recorded: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}

    @property
    def inputs(self) -> Tensor:
        """The batch, as a copy if the model writes into it."""
        return self._inputs.clone() if self._trace.input_overwritten else self._inputs

    def keep(self, index: int, output: Any, position: int) -> None:
        """Keep the output of call ``index``; only its shape if nothing reads it from ``position`` on."""
        self._outputs[index] = self._held(index, output, needed=self._trace.calls[index].last_needed >= position)

    def record(self, index: int, output: Any, *, needed: bool) -> None:
        """Record the output of call ``index`` for when the prefix reaches it; only its shape, if not ``needed``."""
        self._recorded[index] = self._held(index, output, needed=needed)

    def recorded(self, index: int) -> bool:
        """Return whether an earlier pass has left the output of call ``index``."""
        return index in self._recorded or index in self._shared

    def take(self, index: int) -> Any:
        """Remove and return the recorded output of call ``index``; the caller may write into it."""
        return self._recorded.pop(index) if index in self._recorded else self._shared.pop(index)

    def share(self, index: int, output: Any) -> None:
        """Keep the output of call ``index``, after the position, for later passes that leave it unchanged."""
        self._shared[index] = self._held(index, output, needed=True)

    def shares(self, index: int) -> bool:
        """Return whether the output of call ``index`` was kept by :meth:`share`."""
        return index in self._shared

    def shared(self, index: int) -> Any:
        """Return the shared output of call ``index``, as a copy if the model writes into it later."""
        output = self._shared[index]
        return map_tensors(output, torch.clone) if self._trace.calls[index].overwritten else output

    def forget_shared(self) -> None:
        """Release what :meth:`share` has kept."""
        self._shared.clear()

    def output(self, index: int) -> Any:
        """Return the kept output of call ``index``, as a copy if the model writes into it later."""
        output = self._outputs[index]
        call = self._trace.calls[index]
        return map_tensors(output, torch.clone) if call.overwritten and call.last_needed >= self.position else output

    def reached(self, position: int) -> None:
        """Move to ``position`` and release the outputs that are not needed from there on."""
        self.position = position
        calls = self._trace.calls
        for index in list(self._outputs):
            parent = calls[index].parent
            if parent >= 0 and calls[parent].end < position:
                del self._outputs[index]
            elif calls[index].last_needed < position:
                self._outputs[index] = map_tensors(self._outputs[index], _placeholder)
        for index in [index for index in self._recorded if calls[index].end < position]:
            del self._recorded[index]
        for index in [index for index in self._shared if calls[index].start < position]:
            del self._shared[index]
        if self._trace.input_last_needed < position:
            self._inputs = _placeholder(self._inputs)

    def _held(self, index: int, output: Any, *, needed: bool) -> Any:
        if not needed:
            return map_tensors(output, _placeholder)
        # The next call may write into it.
        return map_tensors(output, torch.clone) if self._trace.calls[index].overwritten else output


class WatchedPrefix(Prefix):
    """A prefix that detects whether these images make the model write into kept outputs.

    Only outside of ``inference_mode``, whose tensors have no version counters.
    """

    def __init__(self, trace: CallTrace, inputs: Tensor) -> None:
        super().__init__(trace, inputs)
        self._versions: dict[int, list[tuple[Tensor, int]]] = {}
        self._note(-1, inputs)

    def keep(self, index: int, output: Any, position: int) -> None:
        """Keep the output of call ``index``, and its version counter."""
        super().keep(index, output, position)
        if not self._trace.calls[index].overwritten:
            self._note(index, self._outputs[index])

    def reached(self, position: int) -> None:
        """Move to ``position``; raises ReplayMismatch if a kept tensor was written to."""
        self.require_untouched()
        super().reached(position)
        self._versions = {index: kept for index, kept in self._versions.items() if index in (-1, *self._outputs)}

    def require_untouched(self) -> None:
        """Raise ReplayMismatch if a kept tensor was written to."""
        written = any(version_of(tensor) != version for kept in self._versions.values() for tensor, version in kept)
        if written:
            raise ReplayMismatch("some images overwrite an output that those that were watched did not")

    def _note(self, index: int, output: Any) -> None:
        readable = (tensor for tensor in tensors_in(output) if not isinstance(tensor, UnreadableTensor))
        self._versions[index] = [(tensor, version_of(tensor)) for tensor in readable]


def prefix_bytes_per_image(trace: CallTrace, positions: list[int]) -> int:
    """Return the most bytes that a prefix holds for one image at any of ``positions``."""
    most = 0
    for position in positions:
        held = sum(
            call.output_bytes
            for call in trace.calls
            if call.end < position <= call.last_needed and _is_outermost(trace, call, position)
        )
        most = max(most, held)
    return most // trace.batch_size


@dataclass(frozen=True, slots=True)
class _Segment:
    """Calls between two positions, whether their outputs' data are needed at its end, and the savings by recording."""

    calls: dict[int, bool]
    bytes_per_image: float
    macs: int


def calls_to_record(
    trace: CallTrace, positions: Sequence[int], *, num_images: int, budget_bytes: int
) -> Mapping[int, bool]:
    """Choose which calls a whole pass records, most multiply-accumulates saved per byte first.

    Returns:
        Whether the data of each recorded call is needed or only its shape, by index of the call.
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
