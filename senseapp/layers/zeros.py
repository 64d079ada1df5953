"""How many of the values that a layer multiplies are zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import OperationMode, storage_of
from senseapp.layers.products import products_of
from senseapp.layers.trace import tensors_in
from senseapp.records.profile import LayerProfile


class _WeightWatch:
    """Keeps the weight of the largest product, and which tensors come from the input."""

    def __init__(self, given: Tensor) -> None:
        self._from_input = {storage_of(given)}
        self._alive: list[Any] = [given]
        self._macs = 0
        self.weight: Tensor | None = None

    def saw(self, func: Any, args: tuple[Any, ...], _: Mapping[str, Any], output: Any) -> None:
        """Take note of one operation that has run."""
        self._alive.append((args, output))
        for product in products_of(func, args, output):
            constant = [tensor for tensor in product.weights if storage_of(tensor) not in self._from_input]
            if constant and product.macs > self._macs:
                self.weight, self._macs = constant[0], product.macs
        if any(storage_of(tensor) in self._from_input for tensor in tensors_in(args)):
            self._from_input.update(storage_of(tensor) for tensor in tensors_in(output))


def acting_zero_share(model: nn.Module, layer: LayerProfile) -> float:
    """Return the share of zeros in what ``layer`` multiplies by, as the weights of ``model`` are now.

    That is its weight, unless it is standardised first: then the layer is called once, on zeros, and what it multiplies
    is looked at. 0 if that cannot be done, because the layer's weight is read without a call of the layer.
    """
    owner, _, attribute = layer.parameter.rpartition(".")
    module = model.get_submodule(owner)
    weight: Tensor = getattr(module, attribute)
    if layer.keeps_zeros:
        return _zero_share(weight)
    if not layer.input_shape:
        return 0.0
    given = weight.new_zeros((1, *layer.input_shape))
    watch = _WeightWatch(given)
    with torch.no_grad(), OperationMode(watch.saw):
        type(module).forward(module, given)  # not what may stand in for it while passes are replayed
    return 0.0 if watch.weight is None else _zero_share(watch.weight)


def _zero_share(weight: Tensor) -> float:
    return 1 - int(weight.count_nonzero()) / max(1, weight.numel())
