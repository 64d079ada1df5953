"""State of a model that is put back: counters, caches, running statistics, states of recurrent layers, and flags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from senseapp.compat.torch_internals import restored


@contextmanager
def state_kept(model: nn.Module) -> Iterator[list[str]]:
    """Put attributes and buffers of all modules back on exit, in place and also on error, whatever passes write there.

    Children, hooks, parameters' numbers and training flags are not restored. Yields a list that holds the names of what
    was put back, on exit.
    """
    buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()]
    changed: list[str] = []
    try:
        with restored(model.modules()) as attributes:
            yield changed
    finally:
        changed += attributes
        with torch.no_grad():
            for name, buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
                    changed.append(name)


@contextmanager
def flags_kept(model: nn.Module) -> Iterator[None]:
    """Put training flags of all modules, and of parameters whether they require gradients, back on exit."""
    training = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, trains in training:
            module.training = trains
        for parameter, requires in gradients:
            parameter.requires_grad_(requires)
