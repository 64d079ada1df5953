"""One differentiable pass that keeps what each watched layer took in and gave out, and the gradients there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from senseapp.layers import tensors_in

__all__ = ["Calls", "LayerCall", "Recorder"]


@dataclass(slots=True, weakref_slot=True)
class LayerCall:
    """One call of one watched module.

    Attributes:
        args, kwargs: what it was called with, detached.
        followers: modules that its output ran straight into.
        output: what it, or the last of them, returned, detached.
        versions: version counters of all these tensors at the call, to notice later overwriting.
        gradients: of the probes' pull with respect to the output, one per backward pass.
        input_gradients: with respect to the first argument, through this module only.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    followers: list[nn.Module] = field(default_factory=list)
    versions: tuple[int, ...] = ()
    gradients: list[Tensor] = field(default_factory=list)
    input_gradients: list[Tensor] = field(default_factory=list)

    @property
    def overwritten(self) -> bool:
        """Whether the model wrote into an argument or the output after the call."""
        return self.versions != self.versions_now()

    def versions_now(self) -> tuple[int, ...]:
        """Return the version counters as they are."""
        return tuple(tensor._version for tensor in tensors_in((self.args, self.kwargs, self.output)))


Calls: TypeAlias = dict[str, list[LayerCall]]
"""By the dotted name of the module, in their order."""


class Recorder:
    """Watches modules during differentiable passes; copies what the model writes into (in-place activations).

    Args:
        modules: by dotted name.
        inputs: whether to keep gradients with respect to the input rather than the output.
        followers: modules whose output is kept in place of that of a watched one, if they are called with nothing
            but its output; by name, for each call.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        *,
        inputs: bool,
        followers: Mapping[str, Sequence[Sequence[nn.Module]]] | None = None,
    ) -> None:
        self._modules = modules
        self._inputs = inputs
        self._followers = followers or {}
        self._open = _Open()
        self._copied: set[str] = set()
        self._calls: Calls = {}

    def run(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, Calls]:
        """Return the differentiable output for ``batch``, and the watched modules' calls on the way."""
        self._calls = {}
        # The input asks for gradients, so that a graph exists although no parameter does.
        leaf = batch.detach().clone().requires_grad_()
        with torch.enable_grad(), self._watching():
            output: Tensor = model(leaf * 1)
        calls, self._calls, self._open = self._calls, {}, _Open()  # they hold on to the graph
        late = {name for name, found in calls.items() if any(call.overwritten for call in found)}
        if late - self._copied:
            self._copied |= late
            del output, calls  # or both passes would be held at once
            return self.run(model, batch)
        return output, calls

    def pull(self, output: Tensor, directions: Sequence[Tensor]) -> None:
        """Send each of ``directions`` (N, classes) back through the graph of ``output``."""
        for index, direction in enumerate(directions):
            torch.autograd.backward(output, direction.to(output.dtype), retain_graph=index + 1 < len(directions))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = []
        try:
            for name, module in self._modules.items():
                if self._inputs:
                    handles.append(module.register_forward_pre_hook(self._branch(name), with_kwargs=False))
                handles.append(module.register_forward_hook(self._keep(name), with_kwargs=True))
            followers = {id(m): m for chains in self._followers.values() for chain in chains for m in chain}
            handles += [m.register_forward_hook(self._pass_on, with_kwargs=True) for m in followers.values()]
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _branch(self, name: str) -> Any:
        """Give the module a view of its own, so that the gradient on it passes through this module only."""

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0].view_as(args[0]), *args[1:])

        return hook

    def _keep(self, name: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            result = next(tensors_in(output))
            copied = name in self._copied
            call = LayerCall(
                args=tuple(_detached(item, copied) for item in args),
                kwargs={key: _detached(item, copied) for key, item in kwargs.items()},
                output=_detached(result, copied),
            )
            call.versions = call.versions_now()
            calls = self._calls.setdefault(name, [])
            calls.append(call)
            if self._inputs:
                _catch(args[0], call, call.input_gradients)
                return
            _catch(result, call, call.gradients)
            chains = self._followers.get(name, ())
            expected = chains[len(calls) - 1] if len(calls) <= len(chains) else ()
            self._open = _Open(call=call, output=output, copied=copied, expected=tuple(expected))

        return hook

    def _pass_on(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Keep the output of a follower in place of what it was called with."""
        last = self._open
        if last.call is None or not last.expected or module is not last.expected[0]:
            return
        if kwargs or len(args) != 1 or args[0] is not last.output or not isinstance(output, Tensor):
            self._open = _Open()
            return
        last.call.followers.append(module)
        last.call.output = _detached(output, last.copied)
        last.call.versions = last.call.versions_now()
        _catch(output, last.call, last.call.gradients)
        self._open = replace(last, output=output, expected=last.expected[1:])


@dataclass(frozen=True, slots=True)
class _Open:
    """The latest watched call, what was returned last, and the modules expected to be called with that."""

    call: LayerCall | None = None
    output: Any = None
    copied: bool = False
    expected: tuple[nn.Module, ...] = ()


def _catch(tensor: Tensor, call: LayerCall, found: list[Tensor]) -> None:
    """Add gradients with respect to ``tensor`` as it is now to ``found``, unless a follower takes its place."""
    place = len(call.followers)

    def catch(gradient: Tensor) -> None:
        if len(call.followers) == place:
            found.append(gradient)

    if tensor.requires_grad:  # not where the model itself has switched gradients off
        # A hook set now belongs to the value as it is now, whatever is written into the tensor later.
        tensor.register_hook(catch)  # type: ignore[no-untyped-call]


def _detached(value: Any, copied: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if copied else value.detach()
