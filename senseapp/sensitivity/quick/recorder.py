"""One differentiable pass that keeps what each watched layer took in and gave out, and the gradients there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.layers import tensors_in

__all__ = ["LayerCall", "Recorder"]


@dataclass(slots=True)
class LayerCall:
    """One call of one watched module.

    Attributes:
        args, kwargs: what it was called with, detached.
        versions: version counters of the argument tensors at the call, to notice later overwriting.
        output: what it returned, detached; (N, ...).
        gradients: of the probes' pull with respect to the output, one per backward pass.
        input_gradients: with respect to the first argument, through this module only.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: tuple[int, ...]
    output: Tensor
    gradients: list[Tensor] = field(default_factory=list)
    input_gradients: list[Tensor] = field(default_factory=list)

    @property
    def overwritten(self) -> bool:
        """Whether the model wrote into an argument after the call."""
        return self.versions != tuple(tensor._version for tensor in tensors_in((self.args, self.kwargs)))


class Recorder:
    """Watches modules during differentiable passes.

    Args:
        modules: by dotted name.
        inputs: whether to keep gradients with respect to the input rather than the output.
    """

    def __init__(self, modules: dict[str, nn.Module], *, inputs: bool) -> None:
        self._modules = modules
        self._inputs = inputs
        self._copied: set[str] = set()
        self.calls: dict[str, list[LayerCall]] = {}

    def run(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the differentiable output for ``batch``, keeping the watched modules' calls."""
        self.calls = {}
        # The input asks for gradients, so that a graph exists although no parameter does.
        leaf = batch.detach().clone().requires_grad_()
        with torch.enable_grad(), self._watching():
            output: Tensor = model(leaf * 1)
        late = {name for name, calls in self.calls.items() if any(call.overwritten for call in calls)}
        if late - self._copied:
            self._copied |= late
            return self.run(model, batch)
        return output

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
                versions=(),
                # What follows may write into the output (an in-place activation), so it is copied.
                output=result.detach() if self._inputs else result.detach().clone(),
            )
            call.versions = tuple(tensor._version for tensor in tensors_in((call.args, call.kwargs)))
            self.calls.setdefault(name, []).append(call)
            # A hook set now belongs to the value as it is now, whatever is written into the tensor later.
            if self._inputs:
                args[0].register_hook(call.input_gradients.append)
            else:
                result.register_hook(call.gradients.append)  # type: ignore[no-untyped-call]

        return hook


def _detached(value: Any, copied: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if copied else value.detach()
