"""Prefix replay: when one layer changes, modules that ran before it are not computed again.

Every module's forward is wrapped. A call that ended before the first use of the changed layer returns its kept
output; parents are checked before their children, so whole stages are skipped; the model's own code between the
calls runs as usual, so nothing is traced symbolically or compiled and any module works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from senseapp.core.errors import first_line_of
from senseapp.measure.prefix import Prefix, ReplayMismatch, WatchedPrefix
from senseapp.networks.trace import Call, CallTrace, tensors_in, wrapped_forwards

_ReadT = TypeVar("_ReadT")
_RESTLESS = "two passes over the same images differ"
DIFFERS = "a pass that continues from kept outputs differs from a whole one"


class _Reached(BaseException):
    """Stops a forward pass at the requested event; a BaseException, so that no ``except`` of the model catches it."""


@dataclass(slots=True)
class _Pass:
    """One forward pass under way.

    Attributes:
        stop: the event to stop at, keeping outputs on the way; None to run to the end.
    """

    prefix: Prefix
    stop: int | None = None
    next_call: int = 0


class Replay:
    """Runs one model from any event on, for any number of batches, inside :meth:`installed`.

    :meth:`advance` computes and keeps outputs before a position, :meth:`resume` computes those after it, as often as
    needed.
    """

    def __init__(self, model: nn.Module, trace: CallTrace) -> None:
        self._model = model
        self._calls = trace.calls
        self._pass: _Pass | None = None

    def installed(self) -> AbstractContextManager[None]:
        """Wrap the model's forwards inside the block; they behave as before except in this class's methods."""
        return wrapped_forwards(self._model, self._wrap)

    def advance(self, prefix: Prefix, position: int) -> None:
        """Run from ``prefix.position`` to ``position``, keep what is needed there, and stop.

        Raises:
            ReplayMismatch: the calls come in another order than in the traced pass.
        """
        if position <= prefix.position:
            return
        try:
            self._run(_Pass(prefix, stop=position))
            raise ReplayMismatch("the model returned earlier than when it was watched")
        except _Reached:
            prefix.reached(position)

    def resume(self, prefix: Prefix, *, entry: Callable[..., Any] | None = None) -> Any:
        """Return the model's output, computing only what starts at ``prefix.position`` or later.

        ``entry`` is the wrapped forward of the model, for a caller that is already inside a call of the model.

        Raises:
            ReplayMismatch: calls come in another order than in the traced pass.
        """
        return self._run(_Pass(prefix), entry)

    def _run(self, run: _Pass, entry: Callable[..., Any] | None = None) -> Any:
        self._pass = run
        try:
            return (entry or self._model)(run.prefix.inputs)
        finally:
            self._pass = None

    def _wrap(self, name: str, _module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(*args: Any, **kwargs: Any) -> Any:
            run = self._pass
            if run is None:
                return forward(*args, **kwargs)
            return self._call(run, name, partial(forward, *args, **kwargs))

        return replayed

    def _call(self, run: _Pass, name: str, compute: Callable[[], Any]) -> Any:
        if run.next_call >= len(self._calls) or self._calls[run.next_call].module != name:
            raise ReplayMismatch(f"{name or 'the model'} was called out of order")
        call = self._calls[run.next_call]
        if call.end < run.prefix.position:
            run.next_call = call.after
            return run.prefix.output(call.index)
        if run.stop is not None:
            return self._advance_over(call, run, run.stop, compute)
        if call.start >= run.prefix.position:
            self._pass = None  # from here on every call runs as usual
        else:
            run.next_call += 1
        return compute()

    def _advance_over(self, call: Call, run: _Pass, stop: int, compute: Callable[[], Any]) -> Any:
        if call.start >= stop:
            raise _Reached
        run.next_call += 1
        output = compute()
        if call.end >= stop:
            raise _Reached
        if self._calls[call.parent].end >= stop:  # otherwise the parent's output replaces it
            run.prefix.keep(call.index, output, stop)
        return output


def find_replay_obstacle(model: nn.Module, trace: CallTrace, inputs: Tensor, positions: list[int]) -> str | None:
    """Replay the unchanged model from each ascending position and compare with ``trace``, a pass over ``inputs``.

    Returns:
        The reason why the model cannot be replayed bit for bit; None if it can.
    """
    # A module with state from its last call passes it to later ones. To detect that, other inputs run in between, as
    # they do when several batches are replayed in turn.
    prefix, others = Prefix(trace, inputs), Prefix(trace, -inputs)
    replay = Replay(model, trace)
    try:
        with torch.inference_mode(), replay.installed():
            if not (positions and _is_whole(trace, positions[0])) and not same(model(prefix.inputs), trace.output):
                return _RESTLESS
            for position in positions:
                replay.advance(prefix, position)
                replay.advance(others, position)
                if not same(replay.resume(prefix), trace.output):
                    return _RESTLESS if _is_whole(trace, position) else DIFFERS
    except ReplayMismatch as mismatch:
        return str(mismatch)
    except Exception as error:  # whatever the model raises when its calls are skipped, plain passes still work
        return failure_of(error)
    return None


def plain_note(reason: str) -> str:
    """Return the note on why a run does without prefix replay."""
    return f"Measured by whole passes, which takes longer: {reason}."


def failure_of(error: Exception) -> str:
    """Return the note that the model raises ``error`` where calls are skipped."""
    return f"continuing from kept outputs fails ({type(error).__name__}: {first_line_of(error)})"


def replayed(
    model: nn.Module,
    trace: CallTrace,
    batches: Sequence[Tensor],
    positions: Sequence[int],
    read: Callable[[Any], _ReadT],
) -> list[_ReadT]:
    """Return ``read`` of the unchanged model's output for each of ``batches``, computed from kept outputs.

    All batches stop at each of the ascending ``positions`` in turn, as they do in a measurement, so that a module with
    state from its last call uses that of another batch, which shows in its output. Each module runs once.

    Raises:
        ReplayMismatch: some images make other calls than the traced one.
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


def _is_whole(trace: CallTrace, position: int) -> bool:
    """Return whether a pass that continues at ``position`` skips nothing."""
    return all(call.end >= position for call in trace.calls)


def same(output: Any, expected: Any) -> bool:
    """Return whether two outputs are equal bit for bit; NaN equals NaN."""
    ours, theirs = list(tensors_in(output)), list(tensors_in(expected))
    if not ours or [each.shape for each in ours] != [each.shape for each in theirs]:
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(bool(((one == other) | (one.isnan() & other.isnan())).all()) for one, other in pairs)
