"""Prefix replay: when one layer changes, everything that ran before it is not computed again.

Every module's forward is wrapped. A call that ended before the first use of the changed layer returns its kept
output; parents are asked before their children, so whole stages are skipped; the model's own code between the
calls runs as usual, so nothing is traced or compiled and any module works.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.layers import CallTrace, wrapped_forwards
from senseapp.sensitivity.prefix import Prefix

__all__ = ["Replay", "ReplayMismatch", "unsafe_positions"]


_RESTLESS = "two passes over the same images differ"
_DIFFERS = "a pass that continues from kept outputs differs from a whole one"


class ReplayMismatch(Exception):
    """The model's calls came in another order than when it was watched, so it cannot be replayed."""


class _Reached(BaseException):
    """Stops a forward pass at the wanted event; a BaseException, so that no model's ``except`` takes it."""


@dataclass(slots=True)
class _Pass:
    """One forward pass under way.

    Attributes:
        prefix: kept outputs, valid for calls that ended before ``prefix.position``.
        stop: the event to stop at, keeping outputs on the way; None to run to the end.
        next_call: index that the next call must have.
    """

    prefix: Prefix
    stop: int | None
    next_call: int = 0


class Replay:
    """Runs one model from any event on, for any number of batches.

    Use::

        replay = Replay(model, trace)
        with replay.installed():
            replay.advance(prefix, position)   # computes and keeps what lies before
            output = replay.resume(prefix)     # computes what lies after, as often as wanted
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
            ReplayMismatch: the calls come in another order for these inputs than for those that were watched.
        """
        if position <= prefix.position:
            return
        self._pass = _Pass(prefix=prefix, stop=position)
        try:
            self._model(prefix.inputs)
            raise ReplayMismatch("the model returned earlier than when it was watched")
        except _Reached:
            pass
        finally:
            self._pass = None
        prefix.reached(position)

    def resume(self, prefix: Prefix, *, entry: Callable[..., Any] | None = None) -> Any:
        """Return the model's output, computing only what starts at ``prefix.position`` or later.

        Args:
            prefix: what is kept.
            entry: the wrapped forward of the model, for a caller that is inside a call of the model already.

        Raises:
            ReplayMismatch: as for :meth:`advance`.
        """
        self._pass = _Pass(prefix=prefix, stop=None)
        try:
            return (entry or self._model)(prefix.inputs)
        finally:
            self._pass = None

    def _wrap(self, name: str, _module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(*args: Any, **kwargs: Any) -> Any:
            run = self._pass
            if run is None:
                return forward(*args, **kwargs)
            return self._call(run, name, forward, args, kwargs)

        return replayed

    def _call(
        self, run: _Pass, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if run.next_call >= len(self._calls) or self._calls[run.next_call].module != name:
            raise ReplayMismatch(f"{name or 'the model'} was called out of order")
        call = self._calls[run.next_call]
        if call.end < run.prefix.position:
            run.next_call = call.after
            return run.prefix.output(call.index)
        if run.stop is None:
            if call.start >= run.prefix.position:
                self._pass = None  # from here on everything runs: no need to look at each call
                return forward(*args, **kwargs)
        elif call.start >= run.stop:
            raise _Reached
        run.next_call += 1
        output = forward(*args, **kwargs)
        if run.stop is not None:
            self._keep(run, call.index, output)
        return output

    def _keep(self, run: _Pass, index: int, output: Any) -> None:
        assert run.stop is not None
        call = self._calls[index]
        if call.end >= run.stop:
            raise _Reached
        if self._calls[call.parent].end >= run.stop:  # otherwise the parent's output will stand for it
            run.prefix.keep(index, output, run.stop)


def unsafe_positions(model: nn.Module, trace: CallTrace, inputs: Tensor, positions: list[int]) -> str:
    """Replay the unchanged model from each position and compare with ``trace``; bit for bit, or it is unsafe.

    Args:
        model: the network that was watched.
        trace: of a pass over ``inputs``.
        inputs: the batch that was watched.
        positions: ascending events.

    Returns:
        Why the model cannot be replayed, in words; empty if it can.
    """
    # A module that remembers something of its last call hands it to later ones. To find that out, other inputs come
    # in between, as they do when several batches are replayed in turn.
    prefix, others = Prefix(trace, inputs), Prefix(trace, -inputs)
    replay = Replay(model, trace)
    try:
        with torch.inference_mode(), replay.installed():
            if not (positions and _is_whole(trace, positions[0])) and not _same(model(prefix.inputs), trace.output):
                return _RESTLESS
            for position in positions:
                replay.advance(prefix, position)
                replay.advance(others, position)
                if not _same(replay.resume(prefix), trace.output):
                    return _RESTLESS if _is_whole(trace, position) else _DIFFERS
    except ReplayMismatch as mismatch:
        return str(mismatch)
    except Exception as error:  # whatever the model raises when its calls are skipped, plain passes still work
        return f"continuing from kept outputs fails ({type(error).__name__}: {error})"
    return ""


def _is_whole(trace: CallTrace, position: int) -> bool:
    """Tell whether a pass that continues at ``position`` skips nothing."""
    return all(call.end >= position for call in trace.calls)


def _same(output: Any, expected: Any) -> bool:
    if not isinstance(output, Tensor) or output.shape != expected.shape:
        return False
    return bool(((output == expected) | (output.isnan() & expected.isnan())).all())
