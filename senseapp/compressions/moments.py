"""Second moments of the inputs of layers, on calibration images, computed on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.base import ordinary_tensors
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.networks.layer_product import LayerProduct


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMoments:
    """Sums over rows x of a layer's inputs, for each group of a convolution.

    Attributes:
        rows: number of rows.
        total: Σ x, (G, K).
        second: Σ x xᵀ, (G, K, K).
    """

    rows: int
    total: Tensor
    second: Tensor

    @property
    def about_mean(self) -> Tensor:
        """Σ (x − x̄)(x − x̄)ᵀ, (G, K, K): the moments that matter if a bias absorbs the mean."""
        return torch.baddbmm(self.second, self.total[:, :, None], self.total[:, None, :], alpha=-1 / max(1, self.rows))


class InputMoments:
    """Second moments of the inputs of ``layers`` of ``model``, in execution order, on ``batches``.

    One pass computes those of a requested layer and of as many after it as memory allows, and releases the others.
    """

    def __init__(
        self, model: nn.Module, layers: Mapping[str, LayerProduct], batches: Sequence[Tensor], *, seed: int = 0
    ) -> None:
        self._model, self._layers, self._batches, self._seed = model, layers, batches, seed
        self._found: dict[str, RowMoments] = {}

    def of(self, layer: str) -> RowMoments:
        """Return the moments of one of the layers, with no rows if it is never called."""
        if layer not in self._found:
            self._found = self._gathered(layer)
        return self._found[layer]

    def _gathered(self, first: str) -> dict[str, RowMoments]:
        names, left = list(self._layers), 256 * 2**20  # bytes of moments from one pass
        found: dict[str, RowMoments] = {}
        for name in names[names.index(first) :]:
            groups, width = self._layers[name].groups, self._layers[name].width
            left -= 4 * groups * width**2
            if found and left < 0:
                break
            found[name] = RowMoments(rows=0, total=torch.zeros(groups, width), second=torch.zeros(groups, width, width))
        images = sum(map(len, self._batches))
        draws = {name: layer_generator(self._seed, name) for name in found}

        def observe(name: str, inputs: tuple[Tensor, ...]) -> None:
            layer, before = self._layers[name], found[name]
            rows = layer.rows(inputs[0].float(), layer.positions(images), draws[name])
            found[name] = RowMoments(
                rows=before.rows + rows.shape[1],
                total=before.total.to(rows) + rows.sum(1),
                second=torch.baddbmm(before.second.to(rows), rows.transpose(1, 2), rows),
            )

        with ordinary_tensors():
            observe_inputs(
                self._model, [(self._layers[name].module, partial(observe, name)) for name in found], self._batches
            )
        return found
