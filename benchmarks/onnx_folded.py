"""Norms of a module as training leaves them, and folded into its weights as exporters of ONNX fold them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def train_norms(module: nn.Module, images: Tensor) -> None:
    """Draw factors and offsets of batch norms, and take their statistics from ``images`` (N, C, H, W).

    The norms of an untrained network multiply every channel by the same number, which hides what folding them does to
    the order of weights by size.
    """
    norms = [each for each in module.modules() if isinstance(each, _BatchNorm) and each.affine]
    generator = torch.Generator().manual_seed(0)
    rates = [each.momentum for each in norms]
    with torch.no_grad():
        for each in norms:
            each.weight.uniform_(0.5, 1.5, generator=generator)
            each.bias.normal_(std=0.2, generator=generator)
            each.momentum = 1.0
            each.train()
        module(images)
    for each, rate in zip(norms, rates, strict=True):
        each.momentum = rate
        each.eval()


def folded(module: nn.Module, images: Tensor, stored: Mapping[str, Tensor]) -> tuple[nn.Module, int]:
    """Return a copy of a float32 ``module`` whose norms are folded where a file has folded them.

    Args:
        module: in evaluation mode.
        images: (N, C, H, W), to find which norm reads the output of which layer.
        stored: the weight of each layer in the file, by the module's names.

    Returns:
        The copy, and how many of its layers in ``stored`` have exactly the file's weight.

    Source: ``fuseConvBatchNorm`` of torch's ``eval_peephole.cpp``, ``_fuse_batchnorm.py`` of onnxscript: γ / √(σ² + ε)
    multiplies the weight, all in float32.
    """
    module = copy.deepcopy(module)
    for name, layer, norm in list(_normed(module, images)):
        if name in stored and not torch.equal(stored[name].reshape(layer.weight.shape), layer.weight):
            _fold(layer, norm, stored[name].reshape(layer.weight.shape))
    layers = {name: module.get_submodule(name).weight for name in stored}
    return module, sum(torch.equal(stored[name].reshape(each.shape), each) for name, each in layers.items())


def _normed(module: nn.Module, images: Tensor) -> Iterator[tuple[str, nn.Module, _BatchNorm]]:
    """Yield each convolution or linear layer whose output a batch norm reads, with its name and that norm."""
    written: list[tuple[Tensor, str, nn.Module]] = []
    found: list[tuple[str, nn.Module, _BatchNorm]] = []

    def wrote(name: str, layer: nn.Module, output: Tensor) -> None:
        written.append((output, name, layer))

    def read(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        source = next(((name, layer) for output, name, layer in written if output is inputs[0]), None)
        if source is not None and isinstance(norm, _BatchNorm):
            found.append((*source, norm))

    hooks = []
    for name, each in module.named_modules():
        if isinstance(each, nn.modules.conv._ConvNd | nn.Linear):
            hooks.append(each.register_forward_hook(lambda layer, _, output, name=name: wrote(name, layer, output)))
        elif isinstance(each, _BatchNorm):
            hooks.append(each.register_forward_pre_hook(read))
    try:
        with torch.no_grad():
            module(images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    yield from found


def _fold(layer: nn.Module, norm: _BatchNorm, stored: Tensor) -> None:
    """Multiply the weight of ``layer`` by the factors of ``norm``, and leave ``norm`` the identity.

    The exporters take square roots by torch and by numpy, which differ in the last bit: those are used that give the
    weight in the file, else torch's.
    """
    with torch.no_grad():
        factor = next(
            (each for root in _ROOTS if torch.equal(_times(layer.weight, each := _factor(norm, root)), stored)),
            _factor(norm, torch.sqrt),
        )
        bias = torch.zeros_like(factor) if layer.bias is None else layer.bias
        layer.bias = nn.Parameter((bias - norm.running_mean) * factor + norm.bias)
        layer.weight.copy_(_times(layer.weight, factor))
        norm.weight.fill_(1.0)
        norm.bias.zero_()
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
        norm.eps = 0.0


_ROOTS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sqrt,
    lambda squared: torch.from_numpy(np.sqrt(squared.numpy())),
)


def _factor(norm: _BatchNorm, root: Callable[[Tensor], Tensor]) -> Tensor:
    return norm.weight.detach() / root(norm.running_var + norm.eps)


def _times(weight: Tensor, factor: Tensor) -> Tensor:
    return weight.detach() * factor.reshape(-1, *(1,) * (weight.ndim - 1))
