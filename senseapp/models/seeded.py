"""How weights start: random but the same each time, or not at all where a checkpoint is about to replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SEED = 0
_FILLING = frozenset(
    {
        *(Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_),
        *(nn.init.normal_, nn.init.uniform_),
        *(nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.xavier_normal_, nn.init.xavier_uniform_),
    }
)


@contextmanager
def seeded_weights() -> Iterator[None]:
    """Draw from a fixed seed inside the block; torch's own generator goes on afterwards as if nothing had happened."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        yield


class unset_weights(TorchFunctionMode):  # noqa: N801  (used as a context manager)
    """Leave parameters unset inside the block: drawing them takes most of the time of building a large network."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Call ``func``, unless it fills a parameter with numbers."""
        kwargs = kwargs or {}
        filled = args[0] if args else kwargs.get("tensor")
        if func in _FILLING and isinstance(filled, nn.Parameter):
            return filled
        return func(*args, **kwargs)
