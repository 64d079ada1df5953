"""State that passes of a model change: counters, caches, running statistics, states of recurrent layers."""

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
