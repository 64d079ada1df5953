"""BatchNorm folding into the preceding layer, for one pass or permanently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.networks.profile import BATCH_NORMS
from senseapp.networks.trace import Call, CallTrace, trace_calls

FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layer types, without subclasses, that a BatchNorm can be folded into."""


def foldable_norms(trace: CallTrace, model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the BatchNorms that can be folded into the layer before them, by the name of that layer.

    In the trace, layer and norm are each called once, the norm is called right after the layer with its output tensor,
    no other module reads that tensor, and no other module reads the layer's weight or bias.
    """
    times = Counter(call.module for call in trace.calls)
    found = {}
    for reader in (call for call in trace.calls if call.source >= 0):
        call = trace.calls[reader.source]
        # The norm itself must be the next call, not a block that contains it: outputs of layers are examined per block.
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
    uses = [trace.uses.get(f"{call.module}.{name}") for name, _ in layer.named_parameters()]  # tied: first name
    return all(use is not None and use.readers == {call.index} for use in uses)


def norm_scale(norm: Any) -> Tensor:
    """Return the factor of each channel in ``norm``, γ/√(σ² + ε), (C,)."""
    scale: Tensor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return scale


def folded_values(layer: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of ``layer`` with ``norm`` folded in."""
    scale = norm_scale(norm)
    bias = layer.bias if layer.bias is not None else torch.zeros_like(norm.running_mean)
    weight = layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1))
    return weight, (bias - norm.running_mean) * scale + norm.bias


@contextmanager
def norms_folded(model: nn.Module, norms: Mapping[str, nn.BatchNorm2d]) -> Iterator[None]:
    """Fold ``norms`` into the layers of these names inside the block; see :func:`foldable_norms`."""
    with ExitStack() as stack:
        for name, norm in norms.items():
            stack.enter_context(folded(model.get_submodule(name), norm))
        yield


@contextmanager
def folded(layer: Any, norm: Any) -> Iterator[None]:
    """Fold ``norm`` into ``layer`` inside the block, where ``norm`` is the identity."""
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


def fold_following_norm(model: nn.Module, layer: nn.Module, sample: Tensor) -> bool:
    """Fold the BatchNorm that reads ``layer``'s output into ``layer``; return whether there was one.

    w' = w · γ/√(σ² + ε), b' = (b − μ) · γ/√(σ² + ε) + β; the norm stays in place as the identity, so that an
    activation inside it still works. Nothing changes if folding would change the output for ``sample``. Source:
    Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
    section 3.2.
    """
    if type(layer) not in FOLDABLE:
        return False
    weight, bias = layer.get_parameter("weight"), layer.bias
    with torch.no_grad():
        norm, before = _following_norm(model, layer, sample)
        if norm is None:
            return False
        kept = {key: value.clone() for key, value in norm.state_dict().items()}
        stored = weight.clone()
        _fold(layer, norm)
        if _alike(model(sample), before):
            return True
        norm.load_state_dict(kept)
        weight.copy_(stored)
        layer.register_parameter("bias", bias if isinstance(bias, nn.Parameter) else None)
        return False


def _following_norm(model: nn.Module, layer: nn.Module, sample: Tensor) -> tuple[nn.Module | None, Tensor]:
    """Return the norm that is the only norm to read the only output of ``layer``, and the model's output."""
    trace = trace_calls(model, sample)
    own = {call.index for call in trace.calls if model.get_submodule(call.module) is layer}
    readers = [model.get_submodule(call.module) for call in trace.calls if call.source in own]
    norms = [each for each in readers if isinstance(each, BATCH_NORMS) and each.affine and each.running_var is not None]
    return norms[0] if len(own) == len(norms) == 1 else None, trace.output


def _alike(output: Tensor, before: Tensor) -> bool:
    # A larger difference means that other modules read the layer's output.
    return float((output - before).abs().max()) <= 1e-4 * max(1.0, float(before.abs().max()))


def _fold(layer: Any, norm: Any) -> None:
    weight, bias = folded_values(layer, norm)
    layer.bias = nn.Parameter(bias, requires_grad=False)
    layer.weight.copy_(weight)
    norm.running_mean.zero_()
    norm.running_var.fill_(1 - norm.eps)
    norm.weight.fill_(1)
    norm.bias.zero_()
