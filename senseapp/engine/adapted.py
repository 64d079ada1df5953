"""Measure each layer with the weights that it would be delivered with: adapted to what compression takes from it.

Levels of a layer share the second moments of its inputs, which are gathered once, on the calibration images, in the
uncompressed network; several layers are gathered in one pass, as many as memory allows.

Source: see :mod:`senseapp.compressions.obs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from senseapp.compressions import obs
from senseapp.compressions.base import (
    CompressionRequest,
    Compressor,
    Freedom,
    LayerWeight,
    Prepared,
    Target,
    WeightCompressor,
    build_compressor,
    find_weights,
    ordinary_tensors,
    swapped,
)
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.layers.layer_product import LayerProduct
from senseapp.records.spec import SensitivitySpec

_HELD_BYTES = 256 * 2**20  # of second moments that one pass gathers


def compressor_for(spec: SensitivitySpec, request: CompressionRequest) -> Compressor:
    """Return the compression that ``spec`` asks for, with adapted weights where it says so."""
    plain = build_compressor(spec.compression, request)
    return AdaptedCompressor(plain, request) if spec.adapted and isinstance(plain, WeightCompressor) else plain


class AdaptedCompressor(WeightCompressor):
    """Compresses as ``plain`` does, and then gives the layer the weights that make up best for it.

    Layers whose weight is not simply multiplied with rows of inputs stay as ``plain`` compresses them; see ``left``.

    Attributes:
        left: why layers are not adapted, by name.
    """

    def __init__(self, plain: WeightCompressor, request: CompressionRequest) -> None:
        self.targets, self.not_applicable = plain.targets, plain.not_applicable
        self._plain, self._request = plain, request
        self._weights, _ = find_weights(request.model, request.layers)
        self.left = {
            target.layer: reason for target in self.targets if (reason := _obstacle(self._weights[target.layer]))
        }
        self._seconds: dict[str, tuple[Tensor, int]] = {}

    def prepare(self, target: Target, level: float) -> Prepared:
        """Compress, and adapt the weights; MeasurementFailed where they cannot be compressed."""
        prepared, weight = self._plain.prepare(target, level), self._weights[target.layer]
        if target.layer in self.left or prepared.freedom == Freedom():
            return prepared
        second, rows = self._second(target.layer)
        if not rows:  # it is never called on these images
            return prepared
        parameter = weight.parameter
        with ordinary_tensors():
            product = LayerProduct(weight.module, tuple(parameter.shape))
            dense = product.matrix(parameter.detach()).float()
            found = obs.adapted(dense, obs.damped(second.to(dense.device), rows), prepared.freedom)
            if not bool(found.isfinite().all()):
                return prepared
            adapted = product.weight(found, parameter.detach())
        prepared.release()
        if prepared.inputs is None:
            return replace(
                prepared,
                active=lambda: swapped(parameter, adapted),
                weight=lambda: adapted,
                release=lambda: None,
            )
        inputs = prepared.inputs

        @contextmanager
        def active() -> Iterator[None]:
            with swapped(parameter, adapted), inputs():
                yield

        return replace(prepared, active=active, release=lambda: None)

    def _second(self, layer: str) -> tuple[Tensor, int]:
        """Return the second moments of the inputs of ``layer``, (G, K, K), and over how many rows: a sum."""
        if layer not in self._seconds:
            self._seconds = self._gathered(layer)
        return self._seconds[layer]

    def _gathered(self, first: str) -> dict[str, tuple[Tensor, int]]:
        """Return what :meth:`_second` does, of ``first`` and of those layers after it that memory allows."""
        names = [target.layer for target in self.targets if target.layer not in self.left]
        products, left = dict[str, LayerProduct](), _HELD_BYTES
        for name in names[names.index(first) :]:
            weight = self._weights[name]
            product = LayerProduct(weight.module, tuple(weight.parameter.shape))
            left -= 4 * product.groups * product.width**2
            if products and left < 0:
                break
            products[name] = product
        images = sum(map(len, self._request.calibration))
        found = {name: (torch.zeros(each.groups, each.width, each.width), 0) for name, each in products.items()}
        draws = {name: layer_generator(self._request.seed, name) for name in products}

        def observe(name: str, inputs: tuple[Tensor, ...]) -> None:
            product = products[name]
            rows = product.rows(inputs[0].float(), product.positions(images), draws[name])
            second, count = found[name]
            found[name] = torch.baddbmm(second.to(rows), rows.transpose(1, 2), rows), count + rows.shape[1]

        watchers = [(self._weights[name].module, partial(observe, name)) for name in products]
        with ordinary_tensors():
            observe_inputs(self._request.model, watchers, self._request.calibration)
        return found


def _obstacle(weight: LayerWeight) -> str:
    if not weight.profile.keeps_zeros:
        return "its weight is standardised before use"
    return LayerProduct.obstacle(weight.module)
