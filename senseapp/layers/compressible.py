"""Which parameters of a network are weights of compressible layers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def compressible_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (layer name, its module, name of the weight attribute) in the order of ``named_modules``.

    Compressible are convolutions, transposed convolutions and linear layers, subclasses included, and the
    joint query-key-value projection of ``nn.MultiheadAttention``, which is a bare parameter.
    A layer whose weight is computed (``torch.nn.utils.parametrize``) is yielded too; its attribute is no
    :class:`~torch.nn.Parameter`, and the compressions say why they leave it out.
    """
    for name, module in model.named_modules():
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            yield name, module, "weight"
        elif isinstance(module, nn.MultiheadAttention) and isinstance(module.in_proj_weight, nn.Parameter):
            yield name, module, "in_proj_weight"


def channel_axis_of(module: nn.Module) -> int:
    """Return the weight axis of the output channels: 1 for transposed convolutions, 0 otherwise."""
    return 1 if isinstance(module, _TRANSPOSED) else 0
