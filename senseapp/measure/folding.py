"""BatchNorm folding into the preceding layer, for as long as a block of code runs.

Source: Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
inference", section 3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from senseapp.compat.torch_internals import has_forward_hooks, restored
from senseapp.networks.profile import BATCH_NORMS
from senseapp.networks.trace import Call, CallTrace

FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layer types, without subclasses, that a BatchNorm can be folded into."""


def foldable_norms(trace: CallTrace, model: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorms that can be folded into the layer before them, by the name of that layer.

    They may have an activation inside. In the trace, layer and norm are each called once, the norm is called right
    after the layer with its output tensor, no other module reads that tensor, and no other module reads the layer's
    weight or bias.
    """
    times = Counter(call.module for call in trace.calls)
    found: dict[str, Any] = {}
    for reader in (call for call in trace.calls if call.source >= 0):
        call = trace.calls[reader.source]
        # The norm itself must be the next call, not a block that contains it: outputs of layers are examined per block.
        if call.after != reader.index or call.last_needed > reader.end:
            continue
        if times[call.module] + times[reader.module] > 2:
            continue
        layer, norm = model.get_submodule(call.module), model.get_submodule(reader.module)
        is_plain = isinstance(norm, BATCH_NORMS) and norm.affine and norm.running_var is not None
        if is_plain and not has_forward_hooks(norm) and _reads_alone(layer, call, trace):
            found[call.module] = norm
    return found


def _reads_alone(layer: nn.Module, call: Call, trace: CallTrace) -> bool:
    if (
        type(layer) not in FOLDABLE
        or "weight" not in dict(layer.named_parameters(recurse=False))
        or has_forward_hooks(layer)
    ):
        return False
    uses = [trace.uses.get(f"{call.module}.{name}") for name, _ in layer.named_parameters()]  # tied: first name
    return all(use is not None and use.readers == {call.index} for use in uses)


@contextmanager
def norms_folded(model: nn.Module, norms: Mapping[str, nn.Module]) -> Iterator[None]:
    """Fold ``norms`` into the layers of these names inside the block, see :func:`foldable_norms`.

    They are the identity there, but for an activation inside.
    """
    with restored([*norms.values(), *(model.get_submodule(name) for name in norms)]):
        for name, norm in norms.items():
            _fold(model.get_submodule(name), norm)
        yield


def _fold(layer: Any, norm: Any) -> None:
    with torch.no_grad():
        statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        folded = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics)
        layer.weight, layer.bias = (each.requires_grad_(False) for each in folded)
        norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
        norm.bias = nn.Parameter(torch.zeros_like(norm.bias), requires_grad=False)
        norm.running_mean = torch.zeros_like(norm.running_mean)
        norm.running_var = torch.full_like(norm.running_var, 1 - norm.eps)
