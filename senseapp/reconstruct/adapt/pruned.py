"""Least-squares compensation in the consumers of pruned channels.

A layer that lost input channels gets new weights, which minimise the error of its outputs relative to the uncompressed
network on the same images, by least squares with a ridge towards its own weights: the contribution of the removed
channels is predicted from those kept, and errors of earlier layers are compensated. Norms and biases are matched in
between (:class:`~senseapp.reconstruct.repair.Matching`), since least squares reduces the spread of outputs.

Source: Luo et al. 2017, "ThiNet", eq. 7, and He et al. 2017, "Channel Pruning", eq. 1 without its mask; here towards
the outputs of the uncompressed network, and with the strength of the ridge found on images that it is not fitted to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.texts import plural
from senseapp.descriptions import get
from senseapp.measure.context import MeasurementContext
from senseapp.networks.layer_product import LayerProduct
from senseapp.reconstruct.adapt.sequential_pass import NormVisit, SequentialPass, SiteVisit
from senseapp.reconstruct.apply import AppliedModel
from senseapp.reconstruct.repair import Matching
from senseapp.reconstruct.repair_sites import LayerSite, NormSite, pooled

# Of the inputs' mean variance, the strongest first. On EfficientNet-Lite0 with 30 % of its MACs pruned, held-out
# photographs lost .28 nats so, .39 from 10 on, and .47 from .1 on: single layers select too strong a ridge.
_RIDGES = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """Sums over S rows of inputs x (S, K) and wanted outputs y (S, O), float64, about means or about zero."""

    count: int
    x: Tensor
    y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    @staticmethod
    def of(inputs: Tensor, wanted: Tensor) -> _Products:
        x, y = inputs.double(), wanted.double()
        return _Products(count=len(x), x=x.sum(0), y=y.sum(0), xx=x.T @ x, xy=x.T @ y, yy=y.square().sum())

    def __add__(self, other: _Products) -> _Products:
        return _Products(
            count=self.count + other.count,
            x=self.x + other.x,
            y=self.y + other.y,
            xx=self.xx + other.xx,
            xy=self.xy + other.xy,
            yy=self.yy + other.yy,
        )

    def centred(self) -> _Products:
        """Return the sums about the means; those about zero stay as they are."""
        return _Products(
            count=self.count,
            x=self.x,
            y=self.y,
            xx=self.xx - torch.outer(self.x, self.x) / self.count,
            xy=self.xy - torch.outer(self.x, self.y) / self.count,
            yy=self.yy - self.y.square().sum() / self.count,
        )

    def error(self, weight: Tensor) -> float:
        """Return the squared error of outputs with ``weight`` (O, K)."""
        return float(self.yy - 2 * (weight.T * self.xy).sum() + ((weight @ self.xx) * weight).sum())

    def fitted(self, weight: Tensor, ridge: float) -> Tensor:
        """Return the weights (O, K) of least squared error, with a ``ridge`` towards ``weight``."""
        strength = ridge * self.xx.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
        damped = self.xx + strength * torch.eye(len(self.xx), dtype=self.xx.dtype, device=self.xx.device)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):  # singular up to rounding
            return weight
        return weight + torch.cholesky_solve(self.xy - self.xx @ weight.T, factor).T


def taken_over(inputs: Tensor, wanted: Tensor, weight: Tensor, *, intercept: bool = True) -> tuple[Tensor, Tensor]:
    """Return new weights (O, K) and bias (O,), float64, for a layer whose target outputs are ``wanted``.

    ``inputs`` (N, P, K) and ``wanted`` (N, P, O) are those of N images at P positions; the ridge is towards ``weight``
    (O, K). Its strength is chosen by cross-validation on every other image; if no strength improves on ``weight``, the
    weights do not change. Without ``intercept`` the bias is 0.
    """
    halves = [
        _Products.of(inputs[first::2].flatten(0, 1), wanted[first::2].flatten(0, 1))
        for first in range(2 if len(inputs) > 1 else 1)
    ]
    every = halves[0] + halves[-1] if len(halves) > 1 else halves[0]
    old = weight.double()
    about = [half.centred() if intercept else half for half in (*halves, every)]
    ridge = _best_ridge(about[:-1], old)
    new = old if math.isinf(ridge) else about[-1].fitted(old, ridge)
    return new, (every.y - new @ every.x) / every.count if intercept else torch.zeros_like(every.y)


def _best_ridge(halves: Sequence[_Products], weight: Tensor) -> float:
    """Return the ridge of least error on the halves not used for the fit; infinite if no change is best."""
    if len(halves) < 2:
        return math.inf
    best, least = math.inf, sum(half.error(weight) for half in halves)
    for ridge in _RIDGES:
        pairs = zip(halves, reversed(halves), strict=True)
        error = sum(judge.error(half.fitted(weight, ridge)) for half, judge in pairs)
        if error < least:
            best, least = ridge, error
        elif best > ridge and not math.isinf(best):
            break  # weaker ones overfit more
    return best


def readers(applied: AppliedModel, dense: nn.Module) -> dict[str, LayerProduct]:
    """Return the layers that read fewer channels than in ``dense`` and are not compressed otherwise."""
    found = {}
    others = [entry for entry in applied.reached if not get(entry.compression).removes_channels]
    compressed = {name for entry in others for name in entry.members}
    for name, module in applied.model.named_modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        if weight is None or name in compressed or LayerProduct.obstacle(module):
            continue
        if weight.shape[1] != dense.get_submodule(name).get_parameter("weight").shape[1]:
            found[name] = LayerProduct(module, tuple(weight.shape))
    return found


@dataclass(slots=True)
class _ReaderVisit:
    """A reader of removed channels, whose new weights and bias approximate its outputs in ``dense``.

    Attributes:
        module, product: the layer in its current state.
        dense: the layer in the uncompressed network.
        kept: its kept output channels, if some were removed.
        intercept: whether the mean of its outputs is free, as a bias or a norm corrects it.
    """

    name: str
    module: nn.Module
    product: LayerProduct
    dense: nn.Module
    kept: Sequence[int] | None
    intercept: bool
    weight: Tensor = field(init=False)
    bias: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        self.weight, bias = self.module.get_parameter("weight").detach().clone(), _bias_of(self.module)
        self.bias = None if bias is None else bias.detach().clone()

    def adapt(self, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """See :class:`~senseapp.reconstruct.adapt.sequential_pass.ModuleVisit`."""
        images = sum(map(len, inputs))
        positions = max(1, 4096 // images)  # 4,096 rows of inputs fit a layer
        input_rows = _rows(self.product, inputs, positions, layer_generator(0, self.name))  # (G, S, K)
        before = self.dense.get_parameter("weight")
        reading = LayerProduct(self.dense, tuple(before.shape))
        wanted = torch.bmm(
            _rows(reading, original, positions, layer_generator(0, self.name)), reading.matrix(before).transpose(1, 2)
        )  # (G, S, O/G)
        wanted = wanted.transpose(0, 1).reshape(images, -1, len(before))
        if (bias := _bias_of(self.dense)) is not None:
            wanted = wanted + bias
        wanted = wanted if self.kept is None else wanted[..., list(self.kept)]
        parts = torch.split(wanted, self.weight.shape[0] // self.product.groups, dim=2)
        found = [
            taken_over(rows.view(images, -1, rows.shape[1]), part, matrix, intercept=self.intercept)
            for rows, part, matrix in zip(input_rows, parts, self.product.matrix(self.weight), strict=True)
        ]
        self._store(
            self.product.weight(torch.stack([weight for weight, _ in found]), self.weight),
            torch.cat([offset for _, offset in found]),
        )

    def undo(self) -> None:
        """See :class:`~senseapp.reconstruct.adapt.sequential_pass.ModuleVisit`."""
        self._store(self.weight, self.bias)

    def is_finite(self) -> bool:
        """See :class:`~senseapp.reconstruct.adapt.sequential_pass.ModuleVisit`."""
        return bool(self.module.get_parameter("weight").isfinite().all())

    def _store(self, weight: Tensor, bias: Tensor | None) -> None:
        self.module.get_parameter("weight").data.copy_(weight)
        if bias is not None and (own := _bias_of(self.module)) is not None:
            own.data.copy_(bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CorrectedVisit(SiteVisit):
    """A layer with a bias, whose outputs get back the mean and the spread that they had in ``dense``."""

    site: LayerSite
    module: nn.Module
    dense: nn.Module

    def adapt(self, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """See :class:`~senseapp.reconstruct.adapt.sequential_pass.ModuleVisit`."""
        self.site.start_from_now()
        before = LayerSite(self.dense, scale=False)
        goal = pooled([before.moments(self.dense(part)) for part in original])
        outputs = [self.module(part) for part in inputs]
        found = pooled([self.site.moments(part) for part in outputs])
        goal = goal if self.kept is None else goal.kept(self.kept)
        self.site.match(goal, found, outputs[0], sum(map(len, inputs)))


class Reconstruction(SequentialPass):
    """Fits new weights for the readers of removed channels, and matches norms and biases in between.

    Args:
        dense: the uncompressed network, traced.
        applied: the pruned network.
        batches: images (N, C, H, W) for the fit.
        matching: the norms and layers of the pruned network to match.
        progress: receives the name of each visited module; may raise, since the network is a copy.

    Attributes:
        readers: the layers with new weights, by name.
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
        found = readers(applied, dense.model)
        self.readers = {name: product for name, product in found.items() if calls[name] == 1}
        for name, product in self.readers.items():
            module, intercept = applied.model.get_submodule(name), bool(matching.norms)
            intercept = intercept or _bias_of(module) is not None
            kept, before = applied.kept_channels.get(name), dense.model.get_submodule(name)
            self.visit(name, _ReaderVisit(name, module, product, before, kept, intercept))
        for name, site in matching.sites.items():
            kept = applied.kept_channels.get(name)
            if isinstance(site, NormSite):
                self.visit(name, NormVisit(site, kept))
            elif calls[name] == 1:
                before, module = dense.model.get_submodule(name), applied.model.get_submodule(name)
                self.visit(name, _CorrectedVisit(site=site, kept=kept, module=module, dense=before))

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the changes."""
        own = f"The weights of {plural(len(self.readers), 'layer')} that read removed channels were fitted anew."
        return (*((own,) if fitted else ()), *self._matching.sentences(fitted=fitted))


def _rows(product: LayerProduct, batches: Sequence[Tensor], positions: int, generator: torch.Generator) -> Tensor:
    return torch.cat([product.rows(input_rows, positions, generator) for input_rows in batches], dim=1)


def _bias_of(module: nn.Module) -> Tensor | None:
    return dict(module.named_parameters(recurse=False)).get("bias")
