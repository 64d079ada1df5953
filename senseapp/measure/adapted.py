"""Sensitivity with adapted weights: each layer is measured with the weights that would be delivered.

All levels of a layer share the second moments of its inputs, computed once in the uncompressed network on the
calibration images. One pass computes those of several layers, limited by memory.

Source: see :mod:`senseapp.compressions.obs`.
"""

from __future__ import annotations

from dataclasses import replace

from senseapp.compressions import obs
from senseapp.compressions.base import (
    CompressionRequest,
    Compressor,
    LayerWeight,
    Prepared,
    Target,
    UpdateConstraint,
    WeightCompressor,
    build_compressor,
    find_weights,
    ordinary_tensors,
)
from senseapp.networks.layer_product import LayerProduct
from senseapp.records.spec import SensitivitySpec


def compressor_for(spec: SensitivitySpec, request: CompressionRequest) -> Compressor:
    """Return the compression that ``spec`` names, with adapted weights if ``spec.adapted``."""
    plain = build_compressor(spec.compression, request)
    return AdaptedCompressor(plain, request) if spec.adapted and isinstance(plain, WeightCompressor) else plain


class AdaptedCompressor(WeightCompressor):
    """Compresses as ``plain`` does, then adapts the layer's weights in closed form.

    Layers whose weight does not multiply rows of inputs keep the weights of ``plain``.

    Attributes:
        left: reasons why layers are not adapted, by layer name.
    """

    def __init__(self, plain: WeightCompressor, request: CompressionRequest) -> None:
        self.targets, self.not_applicable = plain.targets, plain.not_applicable
        self._plain = plain
        self._weights, _ = find_weights(request.model, request.layers)
        self.left = {
            target.layer: reason for target in self.targets if (reason := _obstacle(self._weights[target.layer]))
        }
        self._products = {
            target.layer: LayerProduct(weight.module, tuple(weight.parameter.shape))
            for target in self.targets
            if target.layer not in self.left and (weight := self._weights[target.layer])
        }
        self._moments = obs.InputMoments(request.model, self._products, request.calibration, seed=request.seed)

    def prepare(self, target: Target, level: float) -> Prepared:
        """Compress, and adapt the weights; raises MeasurementFailed if the layer cannot be compressed."""
        prepared, weight = self._plain.prepare(target, level), self._weights[target.layer]
        if target.layer in self.left or prepared.constraint == UpdateConstraint():
            return prepared
        moments, product = self._moments.of(target.layer), self._products[target.layer]
        if not moments.rows:  # the layer does not run on these images
            return prepared
        parameter = weight.parameter
        with ordinary_tensors():
            dense = product.matrix(parameter.detach()).float()
            second = obs.damped(moments.second.to(dense.device), moments.rows)
            found = obs.adapted(dense, second, prepared.constraint).matrix
            if not bool(found.isfinite().all()):
                return prepared
            adapted = product.weight(found, parameter.detach())
        return replace(prepared, weight=lambda: adapted)


def _obstacle(weight: LayerWeight) -> str:
    if not weight.profile.keeps_zeros:
        return "its weight is standardised before use"
    return LayerProduct.obstacle(weight.module)
