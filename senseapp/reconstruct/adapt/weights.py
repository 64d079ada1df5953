"""Closed-form weight updates of the compressed layers, one after the other.

A layer's new weights minimise the squared error at some positions of the images, see :mod:`senseapp.compressions.obs`;
they stay on the grid, or keep as many zeros in the same pattern, as the schedule requires. In between, statistics of
BatchNorms and output means (by biases) are matched to the uncompressed network's.

Sources: Frantar and Alistarh 2022 and 2023, see there; for the uncompressed network's outputs as target, Li et al.
2025, "GPTAQ", eq. 5, here as a change of the weights beforehand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from senseapp.compressions import obs
from senseapp.compressions.base import LayerWeight, UpdateConstraint, find_weights
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.registry import grouped
from senseapp.core.texts import plural
from senseapp.measure.context import MeasurementContext
from senseapp.networks.layer_product import InputSums, LayerProduct
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair_sites import NormSite, batch_norms


@dataclass(slots=True, kw_only=True)
class AdaptedLayer:
    """One layer that gets new weights, ``found``, and a bias that keeps the mean of its outputs.

    ``dense`` and ``old_bias`` are its weight and bias before compression. ``scale`` is that of weights on a grid; it
    changes with them.
    """

    name: str
    weight: LayerWeight
    product: LayerProduct
    dense: Tensor
    constraint: UpdateConstraint
    seed: int
    bias: Tensor | None
    old_bias: Tensor | None
    scale: Tensor | None
    found: obs.AdaptedWeight | None = None

    def adapt(self, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Fit the weights to inputs in the uncompressed network and in this one."""
        draw = partial(layer_generator, self.seed, self.name)
        # Grouped convolutions have too few inputs to make up for errors of earlier layers.
        aimed = self.product.groups == 1
        sums = InputSums.of(self.product, original, inputs, draw, cross=aimed)
        dense = self.product.matrix(self.dense).float()
        wanted, second = _aimed(dense, sums) if aimed else dense, obs.damped(sums.second, sums.count)
        found, parameter = obs.adapted(wanted, second, self.constraint), self.weight.parameter
        self.found = found
        parameter.data.copy_(self.product.weight(found.matrix, parameter))
        if self.scale is not None and found.scale is not None:
            self.scale.copy_(found.scale.reshape(-1)[: len(self.scale)].view_as(self.scale))
        if self.bias is not None and self.old_bias is not None:
            self.bias.data.copy_(self.old_bias + _outputs(dense, sums.original) - _outputs(found.matrix, sums.mean))


class Adaptation(SequentialPass):
    """Fits new weights for the compressed layers of ``applied``: their outputs come near the uncompressed network's.

    ``dense``, ``batches`` and ``progress`` are those of a :class:`SequentialPass`. By name, ``layers`` are adapted, and
    ``left`` says why others are not.
    """

    title = "Weights updated, statistics matched"

    def __init__(
        self,
        dense: MeasurementContext,
        applied: AppliedModel,
        batches: Sequence[Tensor],
        *,
        seed: int = 0,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(dense, applied.model, batches, progress=progress)
        self._seed = seed
        self.left: dict[str, str] = {}
        self.layers: dict[str, AdaptedLayer] = {}
        for position, layer in self._found(dense.model, applied):
            self.visit(layer.name, layer.adapt, (layer.weight.parameter, layer.bias, layer.scale), position)
            self.layers[layer.name] = layer
        for name, module in batch_norms(applied.model).items():
            self.visit_norm(name, NormSite(module))

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the update, and on layers that were not changed."""
        if not fitted:
            return ("Nothing was adapted: the new weights are not finite, or layers are called in varying order.",)
        notes = [f"{self.title}: {plural(len(self.layers), 'layer')}, fitted to {self.num_images} unlabelled images."]
        if self.left:
            name, reason = next(iter(self.left.items()))
            notes.append(f"{plural(len(self.left), 'compressed layer')} kept their weights (first: {name}: {reason}).")
        return tuple(notes)

    def _found(self, dense: nn.Module, applied: AppliedModel) -> Iterator[tuple[int, AdaptedLayer]]:
        """Yield the adaptable layers, each with the position of its call; record why others are not."""
        weights, left = find_weights(applied.model, applied.after.layers)
        self.left = {name: reason for name, reason in left.items() if name in applied.constraints}
        calls = grouped((call.module, call.start) for call in self.trace.calls)
        for name in (name for name in weights if name in applied.constraints):
            weight = weights[name]
            product = LayerProduct(weight.module, tuple(weight.parameter.shape))
            starts = {start for module in weight.target.modules for start in calls.get(module, ())}
            reason = LayerProduct.obstacle(weight.module)
            if len(starts) != 1:
                reason = "its weight is not used by exactly one call of the layer"
            elif not weight.profile.keeps_zeros:
                reason = "its weight is standardised before use"
            if reason:
                self.left[name] = reason
                continue
            bias = bias_of(weight.module)
            yield (
                starts.pop(),
                AdaptedLayer(
                    name=name,
                    weight=weight,
                    product=product,
                    dense=dense.get_parameter(weight.profile.parameter).detach(),
                    constraint=applied.constraints[name],
                    seed=self._seed,
                    bias=bias,
                    old_bias=None if bias is None else bias.detach().clone(),
                    scale=applied.grids[name][1] if name in applied.grids else None,
                ),
            )


def _outputs(matrix: Tensor, mean: Tensor) -> Tensor:
    """Return the outputs of ``matrix`` (G, O, K) for mean inputs (G, K): (G O,)."""
    return torch.einsum("gok,gk->go", matrix, mean).flatten()


def _aimed(dense: Tensor, sums: InputSums) -> Tensor:
    """Return weights (G, O, K) whose outputs are nearest to the uncompressed network's; ridge towards ``dense``."""
    ridged = obs.damped(sums.second, sums.count, least=0.1)
    change: Tensor = torch.linalg.solve(ridged, (dense @ sums.cross).transpose(1, 2))
    return dense + change.transpose(1, 2)


def bias_of(module: nn.Module) -> Tensor | None:
    """Return the bias of a layer, of attention that of its in-projection."""
    name = "in_proj_bias" if isinstance(module, nn.MultiheadAttention) else "bias"
    return cast(Tensor | None, getattr(module, name, None))
