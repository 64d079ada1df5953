"""Operations between the layers of a network that take time of their own, counted in one forward pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import OperationMode
from senseapp.records.probe import GlueKind, GlueVolume

_KINDS: Mapping[str, GlueKind] = {
    "silu": "silu",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "sigmoid": "sigmoid",
    "gelu": "gelu",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "native_layer_norm": "layer_norm",
}
_JOINS: Mapping[str, GlueKind] = {"add": "add", "mul": "mul"}
_POOLS = ("mean", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d")


def glue_of(model: nn.Module, sample: Tensor) -> tuple[GlueVolume, ...]:
    """Return the values that each kind of operation returns for one image of ``sample``, (N, C, H, W).

    What runtimes compute with the layer before it (normalisation of batches, ReLU), and what moves no values, is left
    out.
    """
    seen: Counter[GlueKind] = Counter()

    def saw(operation: Any, inputs: tuple[Any, ...], _named: Mapping[str, Any], output: Any) -> None:
        name = operation.overloadpacket.__name__.rstrip("_")
        tensors = [each for each in inputs if isinstance(each, Tensor) and each.dim() > 1]
        result = output[0] if isinstance(output, tuple) else output
        if not isinstance(result, Tensor):
            return
        if (kind := _KINDS.get(name)) or ((kind := _JOINS.get(name)) and len(tensors) > 1):
            seen[kind] += result.numel()
        elif name in _POOLS and tensors:
            seen["pool"] += tensors[0].numel()
        elif name in ("bmm", "matmul"):
            seen["matmul"] += result.numel() * tensors[0].shape[-1]
        elif "scaled_dot_product" in name:
            query, key = tensors[:2]
            pairs = math.prod(query.shape[:-1]) * key.shape[-2]
            seen["softmax"] += pairs
            seen["matmul"] += 2 * pairs * query.shape[-1]

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), OperationMode(saw):
            model(sample)
    finally:
        model.train(was_training)
    return tuple(GlueVolume(kind=kind, values=round(count / len(sample))) for kind, count in sorted(seen.items()))
