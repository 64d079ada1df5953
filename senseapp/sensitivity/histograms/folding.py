"""Fold the BatchNorm that follows a layer into its weight and bias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["fold_following_norm"]

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_TOLERANCE = 1e-4  # of the largest class score; beyond it the layer's output is read by more than the norm


def fold_following_norm(model: nn.Module, layer: nn.Module, sample: Tensor) -> bool:
    """Move the scale and shift of the BatchNorm that reads ``layer``'s output into ``layer``.

    w' = w · γ/√(σ² + ε), b' = (b − μ) · γ/√(σ² + ε) + β; the norm is left in place as the identity, so that an
    activation inside it still works. Source: Jacob et al. 2018, "Quantization and training of neural networks for
    efficient integer-arithmetic-only inference", section 3.2.

    Args:
        model: changed in place; in ``eval()`` mode.
        layer: a convolution or linear layer of it, of exactly PyTorch's own class.
        sample: (N, C, H, W), to see what reads the output and to check that the model's output stays.

    Returns:
        Whether a norm was folded. The model is unchanged if none follows, or if folding would change its output.
    """
    if type(layer) not in _FOLDABLE:
        return False
    weight, bias = layer.get_parameter("weight"), layer.bias
    with torch.no_grad():
        norm, before = _following_norm(model, layer, sample)
        if norm is None:
            return False
        kept = {key: value.clone() for key, value in norm.state_dict().items()}
        stored = weight.clone()
        _fold(layer, norm)
        if float((model(sample) - before).abs().max()) <= _TOLERANCE * max(1.0, float(before.abs().max())):
            return True
        norm.load_state_dict(kept)
        weight.copy_(stored)
        layer.register_parameter("bias", bias if isinstance(bias, nn.Parameter) else None)
        return False


def _following_norm(model: nn.Module, layer: nn.Module, sample: Tensor) -> tuple[_BatchNorm | None, Tensor]:
    """Return the norm that is called with ``layer``'s very output, and the model's output."""
    outputs: list[Tensor] = []
    found: list[_BatchNorm] = []

    def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:
        outputs.append(output)

    def compare(module: _BatchNorm, args: tuple[Any, ...]) -> None:
        if outputs and args[0] is outputs[-1]:
            found.append(module)

    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.affine]
    handles = [layer.register_forward_hook(keep)]
    handles += [norm.register_forward_pre_hook(compare) for norm in norms if norm.running_var is not None]
    try:
        output: Tensor = model(sample)
    finally:
        for handle in handles:
            handle.remove()
    return (found[0] if len(found) == len(outputs) == 1 else None), output


def _fold(layer: Any, norm: Any) -> None:
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)  # (O,)
    bias = layer.bias if layer.bias is not None else torch.zeros_like(norm.running_mean)
    folded = (bias - norm.running_mean) * factor + norm.bias
    layer.bias = nn.Parameter(folded, requires_grad=False)
    layer.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.dim() - 1)))
    norm.running_mean.zero_()
    norm.running_var.fill_(1 - norm.eps)
    norm.weight.fill_(1)
    norm.bias.zero_()
