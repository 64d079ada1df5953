"""Differentiable passes that record the inputs, outputs and gradients of watched layers."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import version_of
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.trace import CallTrace, map_tensors


@dataclass(slots=True, weakref_slot=True)
class LayerCall:
    """One call of a watched module, detached, with the gradients at its output, or through it at its first argument.

    ``versions`` are the version counters of arguments and output at the call, which reveal later writes.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    versions: tuple[tuple[int, ...], int] = ((), 0)
    gradients: list[Tensor] = field(default_factory=list)

    def clear(self) -> None:
        """Release all tensors."""
        self.gradients.clear()
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
_NONE: Mapping[str, Sequence[nn.Module]] = MappingProxyType({})


class Recorder:
    """Records watched modules during differentiable passes; copies arguments that the model writes into later.

    Gradients are those at the output, or with ``inputs`` at the input. Of a module of ``after`` (see
    :func:`activations_after`) output and gradients are those of the last of its modules.
    """

    def __init__(
        self, modules: dict[str, nn.Module], *, inputs: bool, after: Mapping[str, Sequence[nn.Module]] = _NONE
    ) -> None:
        self._modules = modules
        self._after = after
        self._inputs = inputs
        self._copied: set[str] = set()
        self._calls: Calls = {}
        self._arrived: Callable[[str], None] | None = None  # during :meth:`backward`

    def run(self, model: nn.Module, batch: Tensor) -> tuple[Any, Calls]:
        """Return the differentiable output for ``batch``, and the calls of the watched modules."""
        self._calls = {}
        with torch.enable_grad(), self._watching():
            output = model(batch.detach().clone())
        calls, self._calls = self._calls, {}
        late = {name for name, found in calls.items() if any(call.arguments_overwritten for call in found)}
        if late - self._copied:
            self._copied |= late
            del output, calls  # or both passes would be held at once
            return self.run(model, batch)
        return output, calls

    def backward(self, output: Tensor, directions: Sequence[Tensor], calls: Calls, seen: Callable[[str], None]) -> None:
        """Back-propagate each of ``directions``, which have the shape of ``output``.

        ``seen`` is called with the name of each module once all its calls have all their gradients, last modules first.
        These calls are then cleared, so that gradients of the last direction are not all held at once.
        """
        missing = {name: len(found) * len(directions) for name, found in calls.items()}

        def arrived(name: str) -> None:
            missing[name] -= 1
            if not missing[name]:
                seen(name)
                for call in calls[name]:
                    call.clear()

        if not output.requires_grad:  # it depends on no watched module
            return
        self._arrived = arrived
        try:
            for index, direction in enumerate(directions):
                # A sum needs no gradient argument, whose check would import sympy for half a second.
                (output * direction.to(output.dtype)).sum().backward(retain_graph=index + 1 < len(directions))  # type: ignore[no-untyped-call]
        finally:
            self._arrived = None  # it refers to the calls

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = []
        try:
            for name, module in self._modules.items():
                if self._inputs:
                    handles.append(module.register_forward_pre_hook(self._branch(name), with_kwargs=False))
                handles.append(module.register_forward_hook(self._keep(name), with_kwargs=True))
            handles += [chain[-1].register_forward_hook(self._pass_on(name)) for name, chain in self._after.items()]
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
            self._calls.setdefault(name, []).append(call)
            if self._inputs:
                self._catch(args[0], name, call.gradients)
                return None
            if not result.requires_grad:
                begun = _graph_begins(result)
                output = map_tensors(output, lambda tensor: begun if tensor is result else tensor)
                result = begun
            if name not in self._after:
                self._catch(result, name, call.gradients)
            return output

        return hook

    def _pass_on(self, name: str) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if (calls := self._calls.get(name)) and isinstance(output, Tensor):
                calls[-1].output = output.detach()
                calls[-1].versions = calls[-1].versions_now()
                self._catch(output, name, calls[-1].gradients)

        return hook

    def _catch(self, tensor: Tensor, name: str, found: list[Tensor]) -> None:
        """Add gradients at the current value of ``tensor`` to ``found``."""

        def catch(gradient: Tensor) -> None:
            found.append(gradient)
            if self._arrived is not None:
                self._arrived(name)

        if tensor.requires_grad:  # False where the model itself disables gradients
            # A hook belongs to the value at its registration, whatever is written into the tensor later.
            tensor.register_hook(catch)  # type: ignore[no-untyped-call]


def activations_after(trace: CallTrace, model: nn.Module, names: Iterable[str]) -> dict[str, tuple[nn.Module, ...]]:
    """Return the modules through which alone the output of each module of ``names`` passes, as through an activation.

    All are called once, multiply by no weights, and keep the shape. A response after them has their nonlinearity.
    """
    layers = [parameter.rpartition(".")[0] for parameter, use in trace.uses.items() if use.macs]
    counts, wanted = Counter(call.module for call in trace.calls), set(names)
    found = dict[str, tuple[nn.Module, ...]]()
    for call in trace.calls:
        last = call
        while call.module in wanted and last.after < len(trace.calls) and counts[last.module] == 1:
            reader = trace.calls[last.after]
            if (
                not (reader.alone and reader.source == last.index and reader.output_shape == call.output_shape)
                or (last.last_needed > reader.end and not reader.passes_on)  # something else reads it later
                or counts[reader.module] > 1
                or any(f"{layer}.".startswith(f"{reader.module}.") for layer in layers)
            ):
                break
            found[call.module] = (*found.get(call.module, ()), model.get_submodule(reader.module))
            last = reader
    return found


def _graph_begins(value: Tensor) -> Tensor:
    """Return ``value``, free to be written into, with ``requires_grad``: the graph begins here."""
    return value.detach().requires_grad_() * 1 if value.is_floating_point() else value


def _detached(value: Any, copied: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if copied else value.detach()
