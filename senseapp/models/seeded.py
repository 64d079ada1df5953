"""Random weights that are the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded_weights"]

_SEED = 0


@contextmanager
def seeded_weights() -> Iterator[None]:
    """Draw from a fixed seed inside the block; torch's own generator goes on afterwards as if nothing had happened."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        yield
