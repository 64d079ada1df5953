"""Compressing one layer of a tiny network, for the tests of every weight compression."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.compressions.base import CompressionRequest, Compressor, build_compressor
from senseapp.records.profile import LayerProfile

_COMPRESSIBLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


def profiles_of(model: nn.Module) -> tuple[LayerProfile, ...]:
    """Describe each layer as if every weight were used once, at 100 positions."""
    found: list[tuple[str, str, nn.Module]] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.MultiheadAttention):
            found.append((name, "in_proj_weight", module))
        elif isinstance(module, _COMPRESSIBLE):
            found.append((name, "weight", module))
    return tuple(_profile(order, *item) for order, item in enumerate(found))


def _profile(order: int, name: str, attribute: str, module: nn.Module) -> LayerProfile:
    weight = getattr(module, attribute)
    return LayerProfile(
        name=name,
        layer_type=type(module).__name__,
        parameter=f"{name}.{attribute}",
        weight_shape=tuple(weight.shape),
        num_params=weight.numel(),
        macs=100 * weight.numel(),
        channel_axis=1 if "Transpose" in type(module).__name__ else 0,
        order=order,
    )


def compressor_of(
    model: nn.Module,
    config: SparsityConfig | QuantizationConfig,
    *,
    calibration: Sequence[Tensor] = (),
    seed: int = 0,
    layers: tuple[LayerProfile, ...] | None = None,
) -> Compressor:
    """Build the registered compressor over all layers of ``model``."""
    request = CompressionRequest(
        model=model, layers=profiles_of(model) if layers is None else layers, calibration=tuple(calibration), seed=seed
    )
    return build_compressor(config, request)


def compressed_weight(compressor: Compressor, parameter: nn.Parameter, level: float, *, target: int = 0) -> Tensor:
    """Return a copy of what ``parameter`` holds while ``target`` is compressed to ``level``."""
    with compressor.compress(compressor.targets[target], level):
        return torch.clone(parameter.detach())
