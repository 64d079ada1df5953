"""Prefix replay: when one layer changes, modules that ran before it are not computed again.

Every module's forward is wrapped. A call that ended before the first use of the changed layer returns its kept
output; parents are checked before their children, so whole stages are skipped; the model's own code between the
calls runs as usual, so nothing is traced symbolically or compiled and any module works.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import UnreadableTensor, version_of
from senseapp.core.errors import first_line_of, is_about_memory
from senseapp.metrics.predictions import equal, tensors_in
from senseapp.networks.trace import Call, CallTrace, map_tensors, wrapped_forwards

_RESTLESS = "two passes over the same images differ"
_DIFFERS = "a pass that continues from kept outputs differs from a whole one"


class ReplayMismatch(BaseException):
    """These images make the model run differently from the traced pass, so that it cannot be replayed.

    A BaseException, so that no ``except`` clause of the model catches it.
    """


def _placeholder(tensor: Tensor) -> Tensor:
    """Return a tensor of this shape without storage; reading it raises ReplayMismatch."""
    said = "some images read an output again that those that were watched did not"
    return UnreadableTensor.like(tensor, lambda: ReplayMismatch(said))


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
        if any(version_of(tensor) != version for kept in self._versions.values() for tensor, version in kept):
            raise ReplayMismatch("some images overwrite an output that those that were watched did not")

    def _note(self, index: int, output: Any) -> None:
        readable = (tensor for tensor in tensors_in(output) if not isinstance(tensor, UnreadableTensor))
        self._versions[index] = [(tensor, version_of(tensor)) for tensor in readable]


def prefix_bytes_per_image(trace: CallTrace, positions: list[int]) -> int:
    """Return the most bytes that a prefix holds for one image at any of ``positions``."""

    def held(position: int) -> int:
        kept = (call for call in trace.calls if call.end < position <= call.last_needed)
        return sum(call.output_bytes for call in kept if call.parent < 0 or trace.calls[call.parent].end >= position)

    return max(map(held, positions), default=0) // trace.batch_size


class _Reached(BaseException):
    """Stops a forward pass at the requested event; a BaseException, so that no ``except`` of the model catches it."""


class Replay:
    """Runs one model from any event on, for any number of batches, inside :meth:`installed`.

    :meth:`advance` computes and keeps outputs before a position, :meth:`resume` computes those after it, as often as
    needed.
    """

    def __init__(self, model: nn.Module, trace: CallTrace) -> None:
        self._model = model
        self._calls = trace.calls
        self._prefix: Prefix | None = None  # of the pass under way, with the event to stop at; None: at its end
        self._stop: int | None = None
        self._next_call = 0

    def installed(self) -> AbstractContextManager[None]:
        """Wrap the model's forwards inside the block; they behave as before except in this class's methods."""
        return wrapped_forwards(self._model, self._wrap)

    def advance(self, prefix: Prefix, position: int) -> None:
        """Run from ``prefix.position`` to ``position``, keep what is needed there, and stop.

        Raises ReplayMismatch if the calls come in another order than in the traced pass.
        """
        if position <= prefix.position:
            return
        try:
            self._run(prefix, position)
            raise ReplayMismatch("the model returned earlier than when it was watched")
        except _Reached:
            prefix.reached(position)

    def resume(self, prefix: Prefix, *, entry: Callable[..., Any] | None = None) -> Any:
        """Return the model's output, computing only what starts at ``prefix.position`` or later.

        ``entry`` is the wrapped forward of the model, for a caller that is already inside a call of the model.

        Raises ReplayMismatch if calls come in another order than in the traced pass.
        """
        return self._run(prefix, None, entry)

    def _run(self, prefix: Prefix, stop: int | None, entry: Callable[..., Any] | None = None) -> Any:
        self._prefix, self._stop, self._next_call = prefix, stop, 0
        try:
            return (entry or self._model)(prefix.inputs)
        finally:
            self._prefix = None

    def _wrap(self, name: str, _module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(*args: Any, **kwargs: Any) -> Any:
            if self._prefix is None:
                return forward(*args, **kwargs)
            return self._call(self._prefix, name, partial(forward, *args, **kwargs))

        return replayed

    def _call(self, prefix: Prefix, name: str, compute: Callable[[], Any]) -> Any:
        if self._next_call >= len(self._calls) or self._calls[self._next_call].module != name:
            raise ReplayMismatch(f"{name or 'the model'} was called out of order")
        call = self._calls[self._next_call]
        if call.end < prefix.position:
            self._next_call = call.after
            return prefix.output(call.index)
        if self._stop is not None:
            return self._advance_over(call, prefix, self._stop, compute)
        if call.start >= prefix.position:
            self._prefix = None  # from here on every call runs as usual
        else:
            self._next_call += 1
        return compute()

    def _advance_over(self, call: Call, prefix: Prefix, stop: int, compute: Callable[[], Any]) -> Any:
        if call.start >= stop:
            raise _Reached
        self._next_call += 1
        output = compute()
        if call.end >= stop:
            raise _Reached
        if self._calls[call.parent].end >= stop:  # otherwise the parent's output replaces it
            prefix.keep(call.index, output, stop)
        return output


def find_replay_obstacle(
    model: nn.Module,
    trace: CallTrace,
    batches: Sequence[Tensor],
    positions: Sequence[int],
    plain: Sequence[Any],
    read: Callable[[Any], Any] = lambda raw: map_tensors(raw, torch.clone),
) -> str | None:
    """Replay the unchanged model over ``batches`` from the ascending ``positions``, and compare with whole passes.

    It costs about one pass. ``plain`` is what ``read`` makes of the output of whole passes, for each of ``batches``.

    Returns:
        The reason why the model cannot be replayed bit for bit; None if it can.

    Raises Exception if there is too little memory.
    """
    # A batch alone runs with other inputs in between, which a module with state from its last call would use.
    others = [-batches[0]] if len(batches) == 1 else []
    try:
        if all(map(equal, _replayed(model, trace, [*batches, *others], positions, read), plain)):
            return None
        with torch.inference_mode():
            again = [read(model(Prefix(trace, batch).inputs)) for batch in batches]
    except (ReplayMismatch, Exception) as error:  # whatever is raised when calls are skipped, plain passes still work
        if is_about_memory(error):
            raise
        return failure_of(error)
    return _DIFFERS if all(map(equal, again, plain)) else _RESTLESS


def plain_note(reason: str) -> str:
    """Return the note on why a run does without prefix replay."""
    return f"Measured by whole passes, which takes longer: {reason}."


def failure_of(error: BaseException) -> str:
    """Return why a model that raises ``error`` where calls are skipped cannot be replayed."""
    if isinstance(error, ReplayMismatch):
        return str(error)
    return f"continuing from kept outputs fails ({type(error).__name__}: {first_line_of(error)})"


def _replayed(
    model: nn.Module, trace: CallTrace, batches: Sequence[Tensor], positions: Sequence[int], read: Callable[[Any], Any]
) -> list[Any]:
    """Return ``read`` of the unchanged model's output for each of ``batches``, computed from kept outputs.

    All batches stop at each of the ascending ``positions`` in turn, as they do in a measurement, so that a module with
    state from its last call uses that of another batch, which shows in its output. Each module runs once.

    Raises ReplayMismatch if some images make other calls than the traced one.
    """
    replay, prefixes = Replay(model, trace), [WatchedPrefix(trace, batch) for batch in batches]
    with torch.inference_mode(False), torch.no_grad(), replay.installed():
        for position in positions:
            for prefix in prefixes:
                replay.advance(prefix, position)
        outputs = [read(replay.resume(prefix)) for prefix in prefixes]
    for prefix in prefixes:
        prefix.require_untouched()
    return outputs
