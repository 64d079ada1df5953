"""Attention in a graph: products of two activations, and the layers whose channels they multiply."""

from __future__ import annotations

from torch import nn

from senseapp.networks.onnx.modules import OnnxNetwork, Operation, Step
from senseapp.networks.profile import CONVOLUTIONS

_PRODUCTS = frozenset({"MatMul", "Einsum"})


def attention_layers(model: nn.Module) -> dict[str, str]:
    """Return by layer why its output channels cannot be removed: they are heads, which a graph does not tell apart.

    A network that does not come from a file has none here: its attention is known by its module.
    """
    names = {module: name for name, module in model.named_modules()}
    found: dict[str, str] = {}
    for network in (each for each in model.modules() if isinstance(each, OnnxNetwork)):
        makers = {output: step for step in network.steps for output in step.outputs}
        for step in network.steps:
            module = getattr(step.holder, step.attribute)
            if isinstance(module, Operation) and module.op in _PRODUCTS and _multiplies_activations(step, makers):
                reason = (
                    f"Attention is written as matrix products in the file (“{names[module]}”): which of its channels "
                    "are a head is not known, so none can be removed."
                )
                for layer in _layers_before(step, makers):
                    found.setdefault(names[layer], reason)
    return found


def _multiplies_activations(step: Step, makers: dict[str, Step]) -> bool:
    return len(step.inputs) > 1 and all(_layers_of(name, makers) for name in step.inputs)


def _layers_before(step: Step, makers: dict[str, Step]) -> list[nn.Module]:
    return [layer for name in step.inputs for layer in _layers_of(name, makers)]


def _layers_of(name: str, makers: dict[str, Step]) -> list[nn.Module]:
    """Return the nearest layers that compute ``name``, across norms and what has no weights."""
    pending, seen = [name], set[str]()
    found: list[nn.Module] = []
    while pending:
        each = pending.pop()
        step = makers.get(each)
        if step is None or each in seen:
            continue
        seen.add(each)
        module = getattr(step.holder, step.attribute)
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            found.append(module)
        else:
            pending.extend(step.inputs)
    return found
