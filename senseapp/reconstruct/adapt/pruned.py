"""Least-squares compensation in the consumers of pruned channels.

A layer that lost input channels gets new weights, which minimise the error of its outputs relative to the uncompressed
network on the same images, by least squares with a ridge towards its own weights: the contribution of the removed
channels is predicted from those kept, and errors of earlier layers are compensated. Norms and biases are matched in
between (:class:`~senseapp.reconstruct.repair.Matching`), since least squares reduces the spread of outputs.

Source: Luo et al. 2017, "ThiNet", eq. 7, and He et al. 2017, "Channel Pruning", eq. 1 without its mask; here towards
the outputs of the uncompressed network, and with the strength of the ridge found on images that it is not fitted to.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.texts import plural
from senseapp.descriptions import get
from senseapp.measure.context import MeasurementContext
from senseapp.networks.layer_product import LayerProduct
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.adapt.weights import bias_of
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair import Matching
from senseapp.reconstruct.repair_sites import LayerSite, NormSite, pooled

# Of the inputs' mean variance, the strongest first. On EfficientNet-Lite0 with 30 % of its MACs pruned, held-out
# photographs lost .28 nats so, .39 from 10 on, and .47 from .1 on: single layers select too strong a ridge.
_RIDGES = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


def taken_over(inputs: Tensor, wanted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return new weights (O, K) and bias (O,), float64, for a layer whose target outputs are ``wanted``.

    ``inputs`` (N, P, K) and ``wanted`` (N, P, O) are those of N images at P positions; the ridge is towards ``weight``
    (O, K). Its strength is chosen by cross-validation on every other image; if no strength improves on ``weight``, the
    weights do not change.
    """
    x, y, old = inputs.double(), wanted.double(), weight.double()
    mean_x, mean_y = x.mean((0, 1)), y.mean((0, 1))
    x, missing = x - mean_x, y - mean_y
    missing = missing - x @ old.T
    halves = [_products(x[first::2], missing[first::2]) for first in range(2 if len(x) > 1 else 1)]
    ridge = _best_ridge(halves)
    new = old if ridge is None else old + _change(*_products(x, missing), ridge).T
    return new, mean_y - new @ mean_x


def _products(x: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Return XᵀX (K, K) and XᵀR (K, O) over all rows of inputs and of missing outputs."""
    rows = x.flatten(0, 1)
    return rows.T @ rows, rows.T @ missing.flatten(0, 1)


def _change(xx: Tensor, xr: Tensor, ridge: float) -> Tensor:
    """Return the change of weights (K, O) that adds the missing outputs with least squared error."""
    strength = ridge * xx.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    factor, failed = torch.linalg.cholesky_ex(xx + strength * torch.eye(len(xx), dtype=xx.dtype, device=xx.device))
    return torch.zeros_like(xr) if int(failed) else torch.cholesky_solve(xr, factor)  # singular up to rounding


def _best_ridge(halves: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """Return the ridge of least error on the halves not used for the fit; None if no change is best."""
    best, most = None, 0.0
    for ridge in _RIDGES if len(halves) > 1 else ():
        gain = 0.0  # squared error that the change takes away
        for (xx, xr), fitted in zip(halves, reversed(halves), strict=True):
            change = _change(*fitted, ridge)
            gain += float((change * (2 * xr - xx @ change)).sum())
        if gain > most:
            best, most = ridge, gain
        elif best is not None:
            break  # weaker ones overfit more
    return best


def readers(applied: AppliedModel, dense: nn.Module) -> Iterator[str]:
    """Yield the layers that read fewer channels than in ``dense`` and are not compressed otherwise."""
    others = [entry for entry in applied.reached if not get(entry.compression).removes_channels]
    compressed = {name for entry in others for name in entry.members}
    for name, module in applied.model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if weight is None or name in compressed or LayerProduct.obstacle(module):
            continue
        if weight.shape[1] != dense.get_submodule(name).get_parameter("weight").shape[1]:
            yield name


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of the pruned and of the uncompressed network, and its ``kept`` output channels, if some were removed."""

    name: str
    module: nn.Module
    dense: nn.Module
    kept: Sequence[int] | None

    def read_anew(self, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Give a reader of removed channels a weight and a bias that approximate its outputs in the dense network."""
        images = sum(map(len, inputs))
        positions = max(1, 4096 // images)  # 4,096 rows of inputs fit a layer
        weight, before = self.module.get_parameter("weight"), self.dense.get_parameter("weight")
        product, reading = (
            LayerProduct(each, tuple(each.get_parameter("weight").shape)) for each in (self.module, self.dense)
        )
        rows, rows_before = (
            torch.cat([each.rows(part, positions, draw) for part in batches], dim=1)  # (G, S, K)
            for each, batches, draw in (
                (product, inputs, layer_generator(0, self.name)),
                (reading, original, layer_generator(0, self.name)),
            )
        )
        wanted = torch.bmm(rows_before, reading.matrix(before).transpose(1, 2))  # (G, S, O/G)
        wanted = wanted.transpose(0, 1).reshape(images, -1, len(before))
        if (bias := bias_of(self.dense)) is not None:
            wanted = wanted + bias
        wanted = wanted if self.kept is None else wanted[..., list(self.kept)]
        parts = torch.split(wanted, weight.shape[0] // product.groups, dim=2)
        found = [
            taken_over(group.view(images, -1, group.shape[1]), part, matrix)
            for group, part, matrix in zip(rows, parts, product.matrix(weight), strict=True)
        ]
        weight.data.copy_(product.weight(torch.stack([matrix for matrix, _ in found]), weight))
        if (own := bias_of(self.module)) is not None:
            own.data.copy_(torch.cat([offset for _, offset in found]))

    def correct(self, site: LayerSite, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """Give the outputs of a layer with a bias the mean and the spread that they had in the dense network."""
        site.start_from_now()
        before = LayerSite(self.dense, scale=False)
        goal = pooled([before.moments(self.dense(part)) for part in original]).kept(self.kept)
        outputs = [self.module(part) for part in inputs]
        site.match(goal, pooled([site.moments(part) for part in outputs]), outputs[0], sum(map(len, inputs)))


class Reconstruction(SequentialPass):
    """Fits new weights for the ``readers`` of removed channels, and matches norms and biases in between.

    ``matching`` has the norms and layers of the pruned network, ``applied``, to match; the others are those of a
    :class:`SequentialPass`.
    """

    title = "Weights that read removed channels fitted anew, statistics matched"

    def __init__(
        self,
        dense: MeasurementContext,
        applied: AppliedModel,
        batches: Sequence[Tensor],
        matching: Matching,
        *,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(dense, applied.model, batches, progress=progress)
        self._matching = matching
        calls = Counter(call.module for call in self.trace.calls)
        self.readers = [name for name in readers(applied, dense.model) if calls[name] == 1]

        def layer(name: str) -> _Layer:
            kept = applied.kept_channels.get(name)
            return _Layer(name, applied.model.get_submodule(name), dense.model.get_submodule(name), kept)

        for name in self.readers:
            reader = layer(name)
            self.visit(name, reader.read_anew, reader.module.parameters(recurse=False))
        for name, site in matching.sites.items():
            if isinstance(site, NormSite):
                self.visit_norm(name, site, applied.kept_channels.get(name))
            elif calls[name] == 1:
                self.visit(name, partial(layer(name).correct, site), site.tensors)

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the changes."""
        own = f"The weights of {plural(len(self.readers), 'layer')} that read removed channels were fitted anew."
        return (*((own,) if fitted else ()), *self._matching.sentences(fitted=fitted))
