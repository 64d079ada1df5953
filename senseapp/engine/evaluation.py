"""Prefix replay for a black box: a function of the model that returns one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks, version_of
from senseapp.engine.prefix import Prefix, prefix_bytes_per_image
from senseapp.engine.replay import Replay, ReplayMismatch
from senseapp.layers.trace import CallTrace

_MOST_PREFIX_BYTES = 2 * 2**30


@dataclass(slots=True)
class _Seen:
    """One call of the model during the baseline: its input, a copy to compare with, and what is kept of it."""

    inputs: Tensor
    version: int
    prefix: Prefix

    @classmethod
    def of(cls, given: Tensor, trace: CallTrace) -> _Seen:
        # A tensor made in inference mode has no version that would show whether it is written to later.
        if trace.input_overwritten or given.is_inference():
            with torch.inference_mode(False):
                given = given.clone()
        return cls(given, version_of(given), Prefix(trace, given))

    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return False
        given = args[0]
        if version_of(self.inputs) != self.version:  # a buffer that eval_fn fills anew for each batch
            return False
        if given is self.inputs:
            return True
        return (
            given.device == self.inputs.device
            and given.shape == self.inputs.shape
            and given.dtype == self.inputs.dtype
            and torch.equal(given, self.inputs)
        )


@dataclass(slots=True)
class ReplayedEvaluation:
    """Evaluates a model again and again, continuing from kept outputs where it is called on the same inputs.

    The model's calls are told apart by their order. A call on another input than in the baseline, with other
    arguments, with gradients or autocast switched on, or with hooks that look inside runs as usual: correct first.
    """

    model: nn.Module
    eval_fn: Callable[[nn.Module], float]
    trace: CallTrace
    positions: list[int]
    replayable: bool = True
    _seen: list[_Seen] = field(default_factory=list)
    _replay: Replay = field(init=False)

    def __post_init__(self) -> None:
        self._replay = Replay(self.model, self.trace)

    def baseline(self) -> float:
        """Return the number for the unchanged model, and remember what the model was called on."""
        with torch.no_grad(), self._intercepted(self._remember):
            return float(self.eval_fn(self.model))

    def advance(self, position: int) -> None:
        """Move the kept outputs to ``position``; the model must be unchanged."""
        with torch.no_grad(), self._replay.installed():
            for seen in self._seen:
                try:
                    self._replay.advance(seen.prefix, position)
                except ReplayMismatch:
                    self.replayable = False

    def evaluate(self) -> float:
        """Return the number for the model as it is now."""
        with torch.no_grad():
            if not (self.replayable and self._seen):
                return float(self.eval_fn(self.model))
            with self._replay.installed(), self._intercepted(self._continue):
                return float(self.eval_fn(self.model))

    @contextmanager
    def _intercepted(self, answer: Callable[..., Any]) -> Iterator[None]:
        """Let ``answer(number of the call, forward, args, kwargs)`` stand in for the outermost forward."""
        forward, previous = self.model.forward, self.model.__dict__.get("forward")
        count, inside = 0, False

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, inside
            if inside:  # a call of the model by itself, or one that the replay makes
                return forward(*args, **kwargs)
            inside = True
            try:
                return answer(count, forward, args, kwargs)
            finally:
                inside = False
                count += 1

        self.model.__dict__["forward"] = counted
        try:
            yield
        finally:
            if previous is None:
                del self.model.__dict__["forward"]
            else:
                self.model.__dict__["forward"] = previous

    def _remember(self, count: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replayable = count == len(self._seen) and not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        if replayable and self._fits(args[0]) and _is_ordinary(args[0]) and not self._is_hooked():
            self._seen.append(_Seen.of(args[0], self.trace))
        return forward(*args, **kwargs)

    def _is_hooked(self) -> bool:
        inner = (module for module in self.model.modules() if module is not self.model)
        return any(has_forward_hooks(module) for module in inner)

    def _fits(self, inputs: Tensor) -> bool:
        each = prefix_bytes_per_image(self.trace, self.positions)
        images = sum(len(seen.inputs) for seen in self._seen) + len(inputs)
        return images * each <= _MOST_PREFIX_BYTES

    def _continue(self, count: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen = self._seen[count] if count < len(self._seen) else None
        if seen is None or not seen.matches(args, kwargs) or not _is_ordinary(seen.inputs):
            return forward(*args, **kwargs)
        try:
            return self._replay.resume(seen.prefix, entry=forward)
        except ReplayMismatch:  # the changed model calls its modules in another order
            return forward(*args, **kwargs)


def _is_ordinary(inputs: Tensor) -> bool:
    """Tell whether passes run as kept outputs are computed: without gradients, in the model's own precision."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled(inputs.device.type)
