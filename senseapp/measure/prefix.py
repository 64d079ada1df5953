"""Kept outputs of a forward pass up to some event, so that only the rest is computed again."""

from __future__ import annotations

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

    An output that only skipped calls read is kept as a shape without storage.
    """

    def __init__(self, trace: CallTrace, inputs: Tensor) -> None:
        self.position = 0
        self._trace = trace
        self._inputs = inputs
        self._outputs: dict[int, Any] = {}

    @property
    def inputs(self) -> Tensor:
        """The batch, as a copy if the model writes into it."""
        return self._inputs.clone() if self._trace.input_overwritten else self._inputs

    def keep(self, index: int, output: Any, position: int) -> None:
        """Keep the output of call ``index``; only its shape if nothing reads it from ``position`` on."""
        call = self._trace.calls[index]
        if call.last_needed < position:
            output = map_tensors(output, _placeholder)
        elif call.overwritten:  # the next call may write into it
            output = map_tensors(output, torch.clone)
        self._outputs[index] = output

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
        if self._trace.input_last_needed < position:
            self._inputs = _placeholder(self._inputs)


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


def _is_outermost(trace: CallTrace, call: Call, stop: int) -> bool:
    return call.parent < 0 or trace.calls[call.parent].end >= stop
