"""Layers whose results a graph multiplies with one another, as attention does with queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from senseapp.networks.onnx.modules import OnnxNetwork, Operation, Step
from senseapp.networks.profile import CONVOLUTIONS

_PRODUCTS = frozenset({"MatMul", "Einsum", "Attention"})


def layers_of_products(model: nn.Module) -> dict[str, str]:
    """Return, by each layer of a network from a file that makes a factor of such a product, why it keeps its channels.

    Which channels are a head does not follow from the file. Modules that do not come from a file have none here.
    """
    names = {module: name for name, module in model.named_modules()}
    reasons: dict[str, str] = {}
    for network in (each for each in model.modules() if isinstance(each, OnnxNetwork)):
        makers = {output: step for step in network.steps for output in step.outputs}
        for step in network.steps:
            module = getattr(step.holder, step.attribute)
            if not isinstance(module, Operation) or module.op not in _PRODUCTS:
                continue
            factors = [layers for name in step.inputs if (layers := _layers_before([name], makers))]
            if len(factors) > 1:
                why = (
                    f"Attention is written as matrix products in the file (“{names[module]}”): heads are not pruned in "
                    "ONNX files, only in modules of timm."
                )
                reasons |= {names[layer]: why for layers in factors for layer in layers} | reasons
    return reasons


def _layers_before(values: Iterable[str], makers: Mapping[str, Step]) -> list[nn.Module]:
    """Return the nearest layers that ``values`` are computed by, across norms and what has no weights."""
    pending, seen, found = list(values), set[str](), list[nn.Module]()
    while pending:
        value = pending.pop()
        if value in seen or value not in makers:
            continue
        seen.add(value)
        step = makers[value]
        module = getattr(step.holder, step.attribute)
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            found.append(module)
        else:
            pending.extend(step.inputs)
    return found
