"""Repair of networks with BatchNorm: estimate its running statistics again, after compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["batch_norms", "reestimate_batch_norm", "reestimated"]

_COUNTER = ("num_batches_tracked",)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the modules of ``model`` that keep running statistics of their inputs."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    ]


def reestimate_batch_norm(model: nn.Module, batches: Sequence[Tensor]) -> bool:
    """Replace running means and variances by their averages over ``batches``, without labels or gradients.

    Each batch counts alike (cumulative averages, momentum None), so batches should have one size. Training flags,
    momenta and batch counters come back as they were. Statistics that are not finite are given up for the old ones,
    as are those of a pass that raises.

    Source: Sun et al., Hybrid 8-bit floating point training (2019), section 3.2, for low-precision inference.

    Args:
        model: changed in place; in ``eval()`` mode.
        batches: (N, C, H, W) on the model's device, N at least 2.

    Returns:
        Whether the statistics were replaced.
    """
    norms = batch_norms(model)
    old = [{name: buffer.clone() for name, buffer in norm.named_buffers(recurse=False)} for norm in norms]
    finite = False
    with torch.no_grad():
        try:
            with _gathering(norms):
                for batch in batches:
                    model(batch)
            finite = all(bool(buffer.isfinite().all()) for norm in norms for buffer in norm.buffers(recurse=False))
        finally:
            kept = _COUNTER if finite else (*_COUNTER, "running_mean", "running_var")
            for norm, buffers in zip(norms, old, strict=True):
                for name in set(kept) & set(buffers):
                    norm.get_buffer(name).copy_(buffers[name])
    return finite


@contextmanager
def reestimated(model: nn.Module, batches: Sequence[Tensor]) -> Iterator[None]:
    """Estimate the statistics of ``model`` again, and put the old ones back on exit; see above."""
    old = [(buffer, buffer.clone()) for norm in batch_norms(model) for buffer in norm.buffers(recurse=False)]
    try:
        reestimate_batch_norm(model, batches)
        yield
    finally:
        for buffer, before in old:
            buffer.copy_(before)


@contextmanager
def _gathering(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let ``norms``, and nothing else of their model, gather cumulative averages inside."""
    flags = [(norm.training, norm.momentum) for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        yield
    finally:
        for norm, (training, momentum) in zip(norms, flags, strict=True):
            norm.train(training)
            norm.momentum = momentum
