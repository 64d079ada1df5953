"""Weights that make a network's output non-finite: NaN, infinity, and negative variances of norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.trace import CallTrace, tensors_in

_STATISTICS = ("running_mean", "running_var")


def check_weights(model: nn.Module, trace: CallTrace) -> None:
    """Refuse a network whose output in the traced pass is not finite because of a weight of a layer that ran.

    Raises:
        UnsupportedModel: with the name of the first such layer in execution order, and its fault.
    """
    outputs = [tensor for tensor in tensors_in(trace.output) if tensor.is_floating_point()]
    if all(_is_finite(tensor) for tensor in outputs):
        return
    used = (*(call.module for call in trace.calls), *(name.rpartition(".")[0] for name in trace.uses))
    faults = [(name, fault) for name in dict.fromkeys(used) for fault in _faults(model.get_submodule(name))]
    if not faults:
        return
    layer, fault = faults[0]
    others = {name for name, _ in faults} - {layer}
    more = f" So do {len(others)} more." if len(others) > 1 else " So does one more." if others else ""
    kind = type(model.get_submodule(layer)).__name__
    raise UnsupportedModel(
        f"The layer {layer or 'at the top'} ({kind}) holds {fault}, so the network returns no numbers.{more} Bring "
        "weights from before training went wrong, or train again."
    )


def _faults(module: nn.Module) -> Iterator[str]:
    """Yield the faults of the module's own weights and, for a norm, of its statistics."""
    own = dict(module.named_parameters(recurse=False))
    buffers = dict(module.named_buffers(recurse=False))
    for name, values in (own | {name: buffers[name] for name in _STATISTICS if name in buffers}).items():
        if values.is_floating_point() and not _is_finite(values):
            yield f"NaN or infinite values ({name})"
    variance, eps = buffers.get("running_var"), float(getattr(module, "eps", 0.0))
    if variance is not None and variance.numel() and float(variance.amin()) + eps <= 0:
        yield f"a variance that is not above zero (running_var, {float(variance.amin()):.3g}, eps {eps:g})"


def _is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, with one device transfer; True on the meta device, which has no values.

    A tensor with NaN has NaN as its minimum and maximum.
    """
    if values.is_meta or not values.numel():
        return True
    return bool(torch.stack(torch.aminmax(values.detach())).isfinite().all())
