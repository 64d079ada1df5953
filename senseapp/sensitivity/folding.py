"""A BatchNorm folded into the layer it follows, for as long as a pass lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.layers import Call, CallTrace

FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers, of exactly these classes, that a norm can be folded into."""


def foldable_norms(trace: CallTrace, model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the norms that can be folded into what they follow, by the name of that layer.

    The trace vouches for them: both are called once, the norm right after the layer and with the very tensor that it
    returned, nothing else reads that tensor, and nothing else reads the layer's weight or bias.

    Args:
        trace: of ``model``.
        model: in ``eval()`` mode.
    """
    times = Counter(call.module for call in trace.calls)
    found = {}
    for reader in (call for call in trace.calls if call.source >= 0):
        call = trace.calls[reader.source]
        # Right after it, not inside a block that begins there: what follows a layer is looked at block by block.
        if call.after != reader.index or call.last_needed > reader.end:
            continue
        if times[call.module] + times[reader.module] > 2:
            continue
        layer, norm = model.get_submodule(call.module), model.get_submodule(reader.module)
        if type(norm) is nn.BatchNorm2d and _is_plain(norm) and _reads_alone(layer, call, trace):
            found[call.module] = norm
    return found


def _is_plain(norm: nn.BatchNorm2d) -> bool:
    return norm.affine and norm.running_var is not None and not has_forward_hooks(norm)


def _reads_alone(layer: nn.Module, call: Call, trace: CallTrace) -> bool:
    if (
        type(layer) not in FOLDABLE
        or "weight" not in dict(layer.named_parameters(recurse=False))
        or has_forward_hooks(layer)
    ):
        return False
    uses = [trace.uses.get(f"{call.module}.{name}") for name, _ in layer.named_parameters()]  # tied: by the first name
    return all(use is not None and use.readers == {call.index} for use in uses)


def norm_scale(norm: Any) -> Tensor:
    """Return what ``norm`` multiplies each channel with, γ/√(σ² + ε), (C,)."""
    scale: Tensor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return scale


def folded_values(layer: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of ``layer`` that do what it and ``norm`` do together."""
    scale = norm_scale(norm)
    bias = layer.bias if layer.bias is not None else torch.zeros_like(norm.running_mean)
    weight = layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1))
    return weight, (bias - norm.running_mean) * scale + norm.bias


@contextmanager
def norms_folded(model: nn.Module, norms: Mapping[str, nn.BatchNorm2d]) -> Iterator[None]:
    """Let ``model`` run without ``norms`` inside, folded into the layers of these names; see :func:`foldable_norms`."""
    with ExitStack() as stack:
        for name, norm in norms.items():
            stack.enter_context(folded(model.get_submodule(name), norm))
        yield


@contextmanager
def folded(layer: Any, norm: Any) -> Iterator[None]:
    """Let ``layer`` do what it and ``norm`` do together inside, and ``norm`` nothing."""
    weight, bias = layer.weight, layer.bias
    with torch.no_grad():
        values = folded_values(layer, norm)
    layer.weight, layer.bias = (nn.Parameter(each, requires_grad=False) for each in values)
    norm.__dict__["forward"] = _identity
    try:
        yield
    finally:
        layer.weight, layer.bias = weight, bias
        del norm.__dict__["forward"]


def _identity(values: Tensor) -> Tensor:
    return values
