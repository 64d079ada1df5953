"""Prefix replay for black-box evaluations: functions of the model that return one number."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.measure.replay import (
    Prefix,
    Replay,
    ReplayMismatch,
    failure_of,
    find_replay_obstacle,
    prefix_bytes_per_image,
)
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.network import state_kept
from senseapp.networks.profile import has_idle_layers
from senseapp.networks.trace import CallTrace, forward_replaced, map_tensors, uses_watched

_MOST_PREFIX_BYTES = 2 * 2**30  # of recorded activations


@dataclass(slots=True)
class _SeenInputs:
    """One call of the model during the baseline: a copy of its input, its output, and the prefix kept from it."""

    inputs: Tensor
    prefix: Prefix
    output: Any = None

    @classmethod
    def of(cls, batch: Tensor, trace: CallTrace) -> Self:
        with torch.inference_mode(False):
            copied = batch.clone()  # eval_fn may refill one buffer for each batch
        return cls(copied, Prefix(trace, copied))

    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return False
        batch, own = args[0], self.inputs
        return (batch.device, batch.dtype) == (own.device, own.dtype) and torch.equal(batch, own)


@dataclass(slots=True)
class ReplayedEvaluation:
    """Evaluates a model repeatedly, continuing from kept outputs where a call has the same input as in the baseline.

    The model's calls are identified by their order. A call with another input than in the baseline, with other
    arguments, with gradients or autocast enabled, or with inner hooks runs as a whole pass: correctness first.

    What passes write to the model is put back after each evaluation, so that the next one begins from the same state.

    ``obstacle`` is why nothing is replayed; None if :meth:`check` found no reason.
    """

    model: nn.Module
    eval_fn: Callable[[nn.Module], float]
    trace: CallTrace
    obstacle: str | None = "it was not checked"
    _seen: list[_SeenInputs] = field(default_factory=list)
    _replay: Replay = field(init=False)
    _has_idle_layers: bool = field(init=False)
    _macs: Counter[str] = field(default_factory=Counter)  # of all images, by parameter
    _images: int = 0
    _has_state: bool = False

    def __post_init__(self) -> None:
        self._replay = Replay(self.model, self.trace)
        self._has_idle_layers = has_idle_layers(self.model, self.trace)

    def baseline(self) -> float:
        """Return the number for the unchanged model, and keep the inputs of its calls."""
        with torch.no_grad(), state_kept(self.model) as written, self._intercepted(self._remember):
            number = float(self.eval_fn(self.model))
        self._has_state = bool(written)
        return number

    def further_uses(self) -> dict[str, int]:
        """Return the parameters that only ``baseline`` used, with mean multiply-accumulates, for the trace."""
        images = max(1, self._images)
        return {name: macs // images for name, macs in self._macs.items() if name not in self.trace.uses}

    def check(self, sample: Any, positions: Sequence[int], representative: Sequence[int]) -> None:
        """Check whether replay gives the results of whole passes, for all kept inputs.

        ``sample`` is the input of the traced pass, ``positions`` are those to resume the model from, ascending, and
        ``representative`` some of them that stand for all.
        """
        self.obstacle = None if isinstance(sample, Tensor) else "the model is called with several inputs"
        each = prefix_bytes_per_image(self.trace, list(positions))
        totals = accumulate(each * len(seen.inputs) for seen in self._seen)
        self._seen = self._seen[: sum(total <= _MOST_PREFIX_BYTES for total in totals)]  # others run as whole passes
        if not self.obstacle and self._seen:
            inputs, outputs = [seen.prefix.inputs for seen in self._seen], [seen.output for seen in self._seen]
            try:
                with state_kept(self.model):
                    self.obstacle = find_replay_obstacle(self.model, self.trace, inputs, representative, outputs)
            except Exception as error:  # too little memory
                self.obstacle = failure_of(error)
        for seen in self._seen:
            seen.output = None

    def _state_kept(self) -> AbstractContextManager[object]:
        return state_kept(self.model) if self._has_state else nullcontext()  # copies take milliseconds

    def advance(self, position: int) -> None:
        """Move the kept outputs to ``position``; the model must be unchanged."""
        if self.obstacle:
            return
        with torch.no_grad(), self._state_kept(), self._replay.installed():
            for seen in self._seen:
                try:
                    self._replay.advance(seen.prefix, position)
                except ReplayMismatch as mismatch:
                    self.obstacle = str(mismatch)
                    return

    def evaluate(self) -> float:
        """Return the number for the model in its current state."""
        with torch.no_grad(), self._state_kept():
            if self.obstacle or not self._seen:
                return float(self.eval_fn(self.model))
            with self._replay.installed(), self._intercepted(self._continue):
                return float(self.eval_fn(self.model))

    @contextmanager
    def _intercepted(self, answer: Callable[..., Any]) -> Iterator[None]:
        """Replace the outermost forward by ``answer(number of the call, forward, args, kwargs)``."""
        forward, count, inside = self.model.forward, 0, False

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, inside
            if inside:  # a recursive call of the model, or one by the replay
                return forward(*args, **kwargs)
            inside = True
            try:
                return answer(count, forward, args, kwargs)
            finally:
                inside = False
                count += 1

        with forward_replaced(self.model, counted):
            yield

    def _remember(self, count: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replayable = count == len(self._seen) and not kwargs and len(args) == 1 and isinstance(args[0], Tensor)
        is_hooked = any(has_forward_hooks(module) for module in self.model.modules() if module is not self.model)
        if replayable and _is_ordinary(args[0]) and not is_hooked:
            self._seen.append(_SeenInputs.of(args[0], self.trace))
        output = self._forward(forward, args, kwargs)
        if count < len(self._seen):
            self._seen[count].output = map_tensors(output, torch.clone)  # later code may write into it
        return output

    def _forward(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = next(tensors_in((args, kwargs)), None)
        if not self._has_idle_layers or first is None or first.dim() == 0:
            return forward(*args, **kwargs)
        with uses_watched(self.model, (args, kwargs)) as uses:
            output = forward(*args, **kwargs)
        self._macs.update({name: use.macs for name, use in uses.items()})
        self._images += len(first)
        return output

    def _continue(self, count: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen = self._seen[count] if count < len(self._seen) else None
        if seen is None or not seen.matches(args, kwargs) or not _is_ordinary(seen.inputs):
            return forward(*args, **kwargs)
        try:
            return self._replay.resume(seen.prefix, entry=forward)
        except (ReplayMismatch, Exception):  # a whole pass shows whether the changed model fails or only the replay
            return forward(*args, **kwargs)


def _is_ordinary(inputs: Tensor) -> bool:
    """Return whether passes run under the conditions of kept outputs: gradients and autocast disabled."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled(inputs.device.type)
