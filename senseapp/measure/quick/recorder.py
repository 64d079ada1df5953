"""Differentiable passes that record the inputs, outputs and gradients of watched layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import version_of
from senseapp.measure.folding import norms_folded
from senseapp.networks.trace import Call, CallTrace, map_tensors, tensors_in


@dataclass(slots=True, weakref_slot=True)
class LayerCall:
    """One call of a watched module, detached, with gradients at its output, or through it at its first argument.

    ``output`` is that of the last of the ``downstream`` modules called in a chain after it; ``versions`` are the
    version counters of arguments and output at the call, which reveal later writes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    downstream: list[nn.Module] = field(default_factory=list)
    versions: tuple[tuple[int, ...], int] = ((), 0)
    gradients: list[Tensor] = field(default_factory=list)
    input_gradients: list[Tensor] = field(default_factory=list)

    def clear(self, *, gradients_only: bool = False) -> None:
        """Release all tensors, or only the gradients."""
        self.gradients.clear()
        self.input_gradients.clear()
        if not gradients_only:
            self.args, self.kwargs, self.output = (), {}, self.output.new_empty(0)

    @property
    def arguments_overwritten(self) -> bool:
        """Whether the model wrote into an argument after the call."""
        return self.versions[0] != self.versions_now()[0]

    @property
    def output_overwritten(self) -> bool:
        """Whether the model wrote into the output after the call; a second call recomputes it."""
        return self.versions[1] != self.versions_now()[1]

    def versions_now(self) -> tuple[tuple[int, ...], int]:
        """Return the current version counters."""
        return tuple(version_of(tensor) for tensor in tensors_in((self.args, self.kwargs))), version_of(self.output)


Calls: TypeAlias = dict[str, list[LayerCall]]
"""Calls by the dotted name of the module, in call order."""


class Recorder:
    """Records watched modules during differentiable passes; copies arguments that the model writes into later.

    Gradients are those at the output, or with ``inputs`` at the input. The output of a ``downstream`` module (by name
    of the watched one, for each call) replaces that of the module before it, if it is called with that tensor only.
    ``norms`` are folded into the layers of these names during the passes, and are the identity as downstream modules.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        *,
        inputs: bool,
        downstream: Mapping[str, Sequence[Sequence[nn.Module]]] | None = None,
        norms: Mapping[str, nn.BatchNorm2d] | None = None,
    ) -> None:
        self._modules = modules
        self._inputs = inputs
        self._downstream = downstream or {}
        self.norms = norms or {}
        self._open = _Open()
        self._copied: set[str] = set()
        self._calls: Calls = {}
        self._arrived: Callable[[str], None] = _ignore

    def run(self, model: nn.Module, batch: Tensor) -> tuple[Any, Calls]:
        """Return the differentiable output for ``batch``, and the calls of the watched modules."""
        self._calls = {}
        with torch.enable_grad(), norms_folded(model, self.norms), self._watching():
            output = model(batch.detach().clone())
        calls, self._calls, self._open = self._calls, {}, _Open()  # they refer to the graph
        late = {name for name, found in calls.items() if any(call.arguments_overwritten for call in found)}
        if late - self._copied:
            self._copied |= late
            del output, calls  # or both passes would be held at once
            return self.run(model, batch)
        return output, calls

    def backward(
        self,
        output: Tensor,
        directions: Sequence[Tensor],
        calls: Calls,
        seen: Callable[[str], None],
        *,
        again: bool = False,
    ) -> None:
        """Back-propagate each of ``directions``, which have the shape of ``output``.

        ``seen`` is called with the name of each module once all its calls have all their gradients, last modules first.
        These calls are then cleared, so that gradients of the last direction are not all held at once. With ``again``
        only gradients are, and the graph stays for other directions.
        """
        missing = {name: len(found) * len(directions) for name, found in calls.items()}

        def arrived(name: str) -> None:
            missing[name] -= 1
            if not missing[name]:
                seen(name)
                for call in calls[name]:
                    call.clear(gradients_only=again)

        if not output.requires_grad:  # it depends on no watched module
            return
        self._arrived = arrived
        try:
            for index, direction in enumerate(directions):
                # A sum needs no gradient argument, whose check would import sympy for half a second.
                product = (output * direction.to(output.dtype)).sum()
                product.backward(retain_graph=again or index + 1 < len(directions))  # type: ignore[no-untyped-call]
        finally:
            self._arrived = _ignore  # it refers to the calls

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = []
        try:
            for name, module in self._modules.items():
                if self._inputs:
                    handles.append(module.register_forward_pre_hook(self._branch(name), with_kwargs=False))
                handles.append(module.register_forward_hook(self._keep(name), with_kwargs=True))
            downstream = {id(m): m for chains in self._downstream.values() for chain in chains for m in chain}
            handles += [m.register_forward_hook(self._pass_on, with_kwargs=True) for m in downstream.values()]
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _branch(self, name: str) -> Any:
        """Pass the module a view of its own, so that the gradient at that view is the one through this module only."""

        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            taken = args[0].view_as(args[0]) if args[0].requires_grad else _graph_begins(args[0])
            return (taken, *args[1:])

        return hook

    def _keep(self, name: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            result = next(tensors_in(output))
            copied = name in self._copied
            call = LayerCall(
                args=tuple(_detached(item, copied) for item in args),
                kwargs={key: _detached(item, copied) for key, item in kwargs.items()},
                output=result.detach(),
            )
            call.versions = call.versions_now()
            calls = self._calls.setdefault(name, [])
            calls.append(call)
            if self._inputs:
                self._catch(args[0], name, call, call.input_gradients)
                return None
            chains = self._downstream.get(name, ())
            expected = tuple(chains[len(calls) - 1]) if len(calls) <= len(chains) else ()
            if not expected and not result.requires_grad:
                begun = _graph_begins(result)
                output = map_tensors(output, lambda tensor: begun if tensor is result else tensor)
                result = begun
            self._catch(result, name, call, call.gradients)
            self._open = _Open(name=name, call=call, output=output, expected=expected)
            return output

        return hook

    def _pass_on(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        last = self._open
        if last.call is None or not last.expected or module is not last.expected[0]:
            return None
        if kwargs or len(args) != 1 or args[0] is not last.output or not isinstance(output, Tensor):
            self._open = _Open()
            return None
        last.call.downstream.append(module)
        last.call.output = output.detach()
        last.call.versions = last.call.versions_now()
        if not last.expected[1:] and not output.requires_grad:
            output = _graph_begins(output)
        self._catch(output, last.name, last.call, last.call.gradients)
        self._open = replace(last, output=output, expected=last.expected[1:])
        return output

    def _catch(self, tensor: Tensor, name: str, call: LayerCall, found: list[Tensor]) -> None:
        """Add gradients at the current value of ``tensor`` to ``found``, unless a downstream module replaces it."""
        place = len(call.downstream)

        def catch(gradient: Tensor) -> None:
            if len(call.downstream) == place:
                found.append(gradient)
                self._arrived(name)

        if tensor.requires_grad:  # False where the model itself disables gradients
            # A hook belongs to the value at its registration, whatever is written into the tensor later.
            tensor.register_hook(catch)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Open:
    """The latest watched call of a module, the last output, and the modules expected to be called with that output."""

    name: str = ""
    call: LayerCall | None = None
    output: Any = None
    expected: tuple[nn.Module, ...] = ()


def _graph_begins(value: Tensor) -> Tensor:
    """Return ``value`` with ``requires_grad``, so that a graph exists although no parameter requires gradients.

    The graph begins here: nothing before is back-propagated. The returned product may be written into. Integer tensors
    are returned unchanged.
    """
    if not value.is_floating_point():
        return value
    return value.detach().requires_grad_() * 1


def _detached(value: Any, copied: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if copied else value.detach()


def _ignore(_name: str) -> None:
    """Discard a gradient outside of :meth:`Recorder.backward`."""


_LINEAR = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
)
"""Affine in ``eval()`` mode: first-order estimates are the same without one of these at the end of a chain."""


class DownstreamModule(NamedTuple):
    """One module of a chain, and the shape of its output for one image."""

    module: nn.Module
    shape: tuple[int, ...]


def downstream_modules(
    trace: CallTrace, model: nn.Module, norms: Mapping[str, nn.Module] = MappingProxyType({})
) -> dict[str, list[tuple[DownstreamModule, ...]]]:
    """Return the chain of modules after each call, by module name and in call order, from the trace of one image.

    A chain continues while the next call is the only reader of the output, has no other input, and multiplies by no
    weights. ``norms`` will be folded into the layers of these names; they are not dropped from the end of a chain.
    """
    layers = {parameter.rpartition(".")[0] for parameter, use in trace.uses.items() if use.macs}
    within = {name[:end] for name in layers for end in (*_dots(name), len(name))}  # layers, and what holds one
    chains: dict[str, list[tuple[DownstreamModule, ...]]] = {}
    for call in trace.calls:
        chain = [DownstreamModule(model.get_submodule(c.module), c.output_shape) for c in _readers(trace, call, within)]
        while chain and type(chain[-1].module) in _LINEAR and chain[-1].module is not norms.get(call.module):
            chain.pop()
        chains.setdefault(call.module, []).append(tuple(chain))
    return chains


def _readers(trace: CallTrace, call: Call, within: set[str]) -> Iterator[Call]:
    while call.after < len(trace.calls):
        reader = trace.calls[call.after]
        if reader.module in within or not reader.alone:
            return
        if call.last_needed > reader.end and not reader.passes_on:  # read later, and not as an alias
            return
        yield reader
        call = reader


def _dots(name: str) -> Iterator[int]:
    return (place for place, letter in enumerate(name) if letter == ".")
