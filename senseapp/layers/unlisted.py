"""Weights that no compressible layer holds: nobody should take them for analysed."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from senseapp.layers.compressible import compressible_weights
from senseapp.layers.trace import CallTrace
from senseapp.results.profile import UnlistedWeights

_LEAST_SHARE = 0.001  # of all parameters


def unlisted_weights(model: nn.Module, trace: CallTrace) -> tuple[UnlistedWeights, ...]:
    """Return the weights that are used without a layer, by the module that owns them.

    Everything that a listed layer or a norm holds is left out (biases, gains, what its weight is computed from), and so
    are biases, and other vectors, such as scales and class tokens, of less than a thousandth of all parameters.
    """
    listed, layers = _listed(model)
    total = sum(parameter.numel() for parameter in model.parameters())
    found: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():  # tied ones once
        owner, _, attribute = name.rpartition(".")
        if id(parameter) in listed or _is_within(owner, layers) or "norm" in _type_of(model, owner).lower():
            continue
        is_matrix = sum(length > 1 for length in parameter.shape) >= 2
        is_large = "bias" not in attribute and parameter.numel() >= _LEAST_SHARE * total
        if is_matrix or is_large:
            found.setdefault(owner, []).append((attribute, parameter))
    return tuple(_described(model, owner, weights, trace) for owner, weights in found.items())


def _listed(model: nn.Module) -> tuple[set[int], set[str]]:
    """Return the weights that layers hold, by identity, and the layers that hold nothing else of weight."""
    weights: set[int] = set()
    layers: set[str] = set()
    for name, module, attribute in compressible_weights(model):
        weights.add(id(getattr(module, attribute)))
        if not isinstance(module, nn.MultiheadAttention):
            layers.add(name)
    return weights, layers


def _is_within(owner: str, layers: Iterable[str]) -> bool:
    return any(owner == layer or owner.startswith(f"{layer}.") for layer in layers)


def _type_of(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name)).__name__


def _described(
    model: nn.Module, owner: str, weights: list[tuple[str, nn.Parameter]], trace: CallTrace
) -> UnlistedWeights:
    names = tuple(attribute for attribute, _ in weights)
    uses = [trace.uses.get(f"{owner}.{attribute}" if owner else attribute) for attribute in names]
    return UnlistedWeights(
        module=owner,
        module_type=_type_of(model, owner),
        parameters=names,
        num_params=sum(parameter.numel() for _, parameter in weights),
        macs=sum(use.macs for use in uses if use) // trace.batch_size,
    )
