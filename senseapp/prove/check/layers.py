"""Differences between two networks of one architecture: the outputs of layers of equal names, on a few images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.core.texts import printable_text
from senseapp.networks.profile import profile_model
from senseapp.records.check import TensorDifference, TensorDivergence
from senseapp.runtimes.foreign import relative_difference


def layer_divergence(reference: nn.Module, candidate: nn.Module, images: Tensor) -> TensorDivergence | None:
    """Return how far the outputs of layers differ that both networks have, in the order of the reference.

    Args:
        reference: in ``eval()`` mode; neither network is changed.
        candidate: of the same architecture.
        images: (N, C, H, W), as both take them.
    """
    layers = [layer.name for layer in profile_model(reference, images[:1]).layers]
    others = dict(candidate.named_modules())
    shared = [name for name in layers if name in others]
    if not shared:
        return None
    before, after = ({}, {})  # type: dict[str, Tensor], dict[str, Tensor]
    for network, found in ((reference, before), (candidate, after)):
        with torch.inference_mode(), _recorded(network, shared, found):
            network(images.to(next(network.parameters()).device))
    kinds = dict(reference.named_modules())
    parted = tuple(
        TensorDifference(
            name=printable_text(name),
            operator=type(kinds[name]).__name__,
            shape=tuple(before[name].shape),
            difference=relative_difference(before[name].numpy(), after[name].numpy()),
        )
        for name in before  # in the order of the calls
        if name in after and before[name].shape == after[name].shape
    )
    return TensorDivergence(tensors=parted, matched_by="layer", images=len(images)) if parted else None


@contextmanager
def _recorded(network: nn.Module, names: list[str], found: dict[str, Tensor]) -> Iterator[None]:
    """Keep the first output of each layer while the block runs."""
    modules = dict(network.named_modules())
    with ExitStack() as stack:
        for name in names:

            def keep(_module: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
                if isinstance(output, Tensor):
                    found.setdefault(name, output.detach().double().cpu())

            stack.callback(modules[name].register_forward_hook(keep).remove)
        yield
