"""Every level of a layer at once, where its answer at each position is its weight times what it took in there.

Such a layer answers a change ΔW of its weight with r = ΔW a, so g·r summed over positions is ⟨Σ g aᵀ, ΔW⟩: the
gradient of each image's pull with respect to the weight, made once, takes the place of one pass for each level.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.sensitivity.folding import norm_scale
from senseapp.sensitivity.quick.recorder import LayerCall

# About as many weights are multiplied in the time that one is read from memory.
_READ = 20
_MOST_BYTES = 256 * 2**20


def weight_gradients(
    module: nn.Module,
    call: LayerCall,
    order: Sequence[int],
    gradients: Sequence[Tensor],
    num_levels: int,
    norm: nn.BatchNorm2d | None,
) -> list[Tensor] | None:
    """Return, for each direction, the gradient of each image's pull with respect to the weight, (N, O, I).

    Args:
        module: was called.
        call: what it took in.
        order: axes of its output, the batch first, as those of ``gradients``.
        gradients: at its output, (N, values) for each direction.
        num_levels: how many compressed weights there are.
        norm: was folded into the module, so that it is the call's first follower; None if none was.

    Returns:
        None where the module is none that multiplies position by position, or a pass for each level costs less.
    """
    num_images, directions = len(gradients[0]), len(gradients)
    inputs = _by_position(module, call, order, num_images)
    if inputs is None or call.followers != [each for each in (norm,) if each is not None]:
        return None
    positions, width = inputs.shape[1:]
    held = 4 * width * sum(gradient.numel() for gradient in gradients) // positions
    if directions * (positions + _READ * num_levels) >= num_levels * positions or held > _MOST_BYTES:
        return None
    inputs = inputs.to(gradients[0].dtype)
    outward = [gradient.reshape(num_images, positions, -1).transpose(1, 2) for gradient in gradients]  # (N, O, P) each
    found = [torch.bmm(each, inputs).float() for each in outward]
    return found if norm is None else [each.mul_(norm_scale(norm)[:, None]) for each in found]


def inner_products(gradients: Sequence[Tensor], change: Tensor) -> Tensor:
    """Return the inner products of ``gradients``, (N, O, I) each, with a change of the weight, (N, directions)."""
    with torch.autocast(change.device.type, enabled=False):
        return torch.stack([each.flatten(1) @ change.float().flatten() for each in gradients], dim=1)


def _by_position(module: nn.Module, call: LayerCall, order: Sequence[int], num_images: int) -> Tensor | None:
    """Return what was multiplied by the weight at each position of the output, (N, positions, I), in its order."""
    channels = _channel_axis(module)
    if channels is None or call.kwargs or len(call.args) != 1:
        return None
    data: Tensor = call.args[0]
    if data.dim() != len(order) or order[-1] != channels % data.dim():
        return None
    if isinstance(module, nn.Conv2d):
        if data.dim() != 4:
            return None
        rows, columns = module.stride
        data = data[:, :, ::rows, ::columns]
    return data.permute(*order).reshape(num_images, -1, data.shape[channels])


def _channel_axis(module: nn.Module) -> int | None:
    """Return the axis of the channels if ``module`` multiplies position by position, and does nothing else."""
    if has_forward_hooks(module):
        return None
    if type(module) is nn.Linear:
        return -1
    if type(module) is nn.Conv2d:
        pointwise = module.kernel_size == (1, 1) and module.padding == (0, 0) and module.groups == 1
        return 1 if pointwise else None
    return None
