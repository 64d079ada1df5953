"""Closed-form weight updates: the remaining weights of a layer compensate for rounding or zeroing; moments for them.

A layer's outputs are products X Wᵀ of inputs X (S, K) and weights W (O, K), so new weights V have a squared error of
Σ (W − V) H (W − V)ᵀ with H = XᵀX, one row of W at a time. All functions here minimise it, over rows of one grid or one
pattern of zeros, for all groups of a grouped convolution at once: weights are (G, O, K), second moments (G, K, K).

Sources: Frantar and Alistarh 2022, "Optimal Brain Compression", eq. 3 to 5; Frantar et al. 2023, "GPTQ", algorithm 1
(columns in one order for all rows, Cholesky factor of the inverse); Behdin et al. 2023, "QuantEase", eq. 9 (columns in
turn); Meng et al. 2024, "ALPS", algorithms 1 and 2 (ADMM for the mask, then conjugate gradients on what it leaves).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from senseapp.compressions.base import KeptWeights, UpdateConstraint, WeightGrid, ordinary_tensors
from senseapp.compressions.quantization.activations import observe_inputs
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.networks.layer_product import LayerProduct

_BLOCK = 64  # columns whose updates of the others are one product
_SHARES = tuple(1 - step / 12 for step in range(9))  # of the scale without clipping
_HALF = 0.499  # of a step: smaller differences are rounded back


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """New weights of a layer, ``matrix`` (G, O, K), and the ``scale`` of each row (G, O), if they are on a grid.

    ``unrounded`` (G, O, K) is the optimum of each weight with all others fixed, in units of ``scale``; at most half a
    unit from its rounded value.
    """

    matrix: Tensor
    scale: Tensor | None = None
    unrounded: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMoments:
    """Sums over ``rows`` x of a layer's inputs, by group of a convolution: ``total`` Σ x, (G, K), ``second`` Σ x xᵀ."""

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


def damped(second: Tensor, rows: int | None = None, *, least: float = 0.01) -> Tensor:
    """Return ``second`` (G, K, K) with a share of its mean diagonal added to the diagonal, so that it is invertible.

    This regularises new weights towards the old ones where the inputs determine little. Weights of inputs that are
    always 0 stay. The share is ``least``, or, if ``second`` is a sum over no more ``rows`` than there are inputs, the
    optimal shrinkage (Chen et al. 2010, "Shrinkage algorithms for MMSE covariance estimation", eq. 23).
    """
    mean = second.diagonal(dim1=1, dim2=2).mean(1, keepdim=True)  # (G, 1)
    share = torch.full_like(mean, least)
    width = second.shape[1]
    if rows is not None and rows <= width:
        squares, trace = second.square().sum((1, 2))[:, None], (width * mean).square()
        above = (1 - 2 / width) * squares + trace
        below = (rows + 1 - 2 / width) * (squares - trace / width)
        # Towards equal, uncorrelated moments.
        weight = (above / below.clamp_min(torch.finfo(below.dtype).tiny)).clamp(0, 0.95)
        share = share.maximum(weight / (1 - weight))
    added = share * mean
    return second + torch.diag_embed(torch.where(added > 0, added, 1.0).expand(-1, width))


def squared_error(difference: Tensor, second: Tensor) -> Tensor:
    """Return the squared error (G, O) of the outputs for a ``difference`` (G, O, K) of weights."""
    return ((difference @ second) * difference).sum(2)


def inverse_factor(second: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse of ``second``, positive definite, (G, K, K)."""
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(second)), upper=True)
    return factor


def rounded(weight: Tensor, second: Tensor, grid: WeightGrid, *, kept: Tensor | None = None) -> AdaptedWeight:
    """Return ``weight`` (G, O, K) on ``grid``, with the error of each column compensated in the following ones.

    ``second`` (G, K, K) is positive definite. The columns with the largest inputs come first. The scale of each row is
    the candidate with the least error after the update; then columns are rounded again in turn and the scale is fitted
    again, which never increases the error. Weights that are not ``kept`` (G, O, K) are and stay 0.
    """
    order = second.diagonal(dim1=1, dim2=2).argsort(1, descending=True)  # (G, K)
    columns = order.T[:, :, None].expand(-1, -1, weight.shape[1])  # (K, G, O): the data of one step is contiguous
    second = second.gather(1, order[:, :, None].expand_as(second)).gather(2, order[:, None, :].expand_as(second))
    allowed = None if kept is None else kept.permute(2, 0, 1).gather(0, columns)
    rows = _Rows(weight.permute(2, 0, 1).gather(0, columns), grid, allowed)
    steps, scale = rows.with_best_scale(inverse_factor(second))
    for _ in range(3):  # coordinate descent over columns, each with the best scale for the previous integers
        scale = fitted_scale(rows.wanted, second, steps, scale, shared=grid.shared)
        steps = in_turn(rows.wanted, second, steps, scale, rows.nearest)
    scale = fitted_scale(rows.wanted, second, steps, scale, shared=grid.shared)
    gain = _times(rows.wanted - steps * scale, second) / (second.diagonal(dim1=1, dim2=2).T[..., None] * scale)
    unrounded = steps + gain.clamp(-_HALF, _HALF)

    def in_place(values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(0, columns, values).permute(1, 2, 0)

    return AdaptedWeight(matrix=in_place(steps * scale), scale=scale, unrounded=in_place(unrounded))


def _times(values: Tensor, matrices: Tensor) -> Tensor:
    """Return the product of rows, ``values`` (K, G, R), with ``matrices`` (G, K, L), as (L, G, R)."""
    return torch.bmm(matrices.transpose(1, 2), values.transpose(0, 1)).transpose(0, 1).contiguous()


Nearest = Callable[[int, Tensor, Tensor], Tensor]
"""Returns the allowed steps of a column that are nearest to values (G, R); the third argument is all current steps
(K, G, R)."""


def in_turn(wanted: Tensor, second: Tensor, steps: Tensor, scale: Tensor, nearest: Nearest) -> Tensor:
    """Return ``steps`` (K, G, R) after rounding each column, in turn, to the optimum with all others fixed.

    Rows are ``steps`` times ``scale`` (G, R), ``wanted`` is (K, G, R) and ``second`` (G, K, K). The error never grows.
    """
    steps = steps.clone(memory_format=torch.contiguous_format)
    slope = _times(wanted - steps * scale, second)  # half the negative gradient, (K, G, R)
    for low in range(0, len(steps), _BLOCK):
        high = min(low + _BLOCK, len(steps))
        inner = second[:, low:high, low:high].permute(1, 2, 0)[..., None].contiguous()
        changes = torch.empty_like(slope[low:high])
        for place, column in enumerate(range(low, high)):
            best = nearest(column, steps[column] + slope[column] / (inner[place, place] * scale), steps)
            changes[place] = (best - steps[column]) * scale
            steps[column] = best
            slope[column + 1 : high].addcmul_(changes[place], inner[place, place + 1 :], value=-1)
        slope[high:] -= _times(changes, second[:, low:high, high:])
    return steps


def fitted_scale(wanted: Tensor, second: Tensor, steps: Tensor, scale: Tensor, *, shared: bool = False) -> Tensor:
    """Return the scale (G, R) with which ``steps`` (K, G, R) have the least squared error.

    It stays ``scale`` where they are all 0; if ``shared``, it is one for all rows.
    """
    product = _times(steps, second)
    above, below = (product * wanted).sum(0), (product * steps).sum(0)
    if shared:
        above, below = above.sum().expand_as(scale), below.sum().expand_as(scale)
    fits = (above > 0) & (below > 0)
    return torch.where(fits, above / below.clamp_min(torch.finfo(below.dtype).tiny), scale)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to be rounded, ``wanted`` (K, G, R), and a mask of weights that are ``kept``; scales are (G, R)."""

    wanted: Tensor
    grid: WeightGrid
    kept: Tensor | None

    def with_best_scale(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the steps of :meth:`in_order` and the scale, of several, with the least squared error."""
        columns, groups, rows = self.wanted.shape
        largest = self.wanted.abs().amax(0)
        if self.grid.shared:
            largest = largest.amax().expand_as(largest)
        largest = (largest / self.grid.largest).clamp_min(torch.finfo(largest.dtype).tiny)
        scales = (largest[:, None] * largest.new_tensor(_SHARES)[:, None]).reshape(groups, -1)  # (G, shares * R)
        times = (1, 1, len(_SHARES))
        kept = None if self.kept is None else self.kept.repeat(times)
        steps, error = _Rows(self.wanted.repeat(times), self.grid, kept).in_order(factor, scales)
        error = error.view(groups, -1, rows)
        if self.grid.shared:
            error = error.sum((0, 2), keepdim=True).expand_as(error)
        best = error.argmin(1, keepdim=True)  # (G, 1, R)
        steps = steps.view(columns, groups, -1, rows).gather(2, best.expand(columns, -1, -1, -1))[:, :, 0]
        return steps, scales.view(groups, -1, rows).gather(1, best)[:, 0]

    def nearest(self, column: int, values: Tensor, _steps: Tensor) -> Tensor:
        """Return the grid points nearest to ``values``; 0 for weights that are not kept."""
        nearest = self.grid.nearest(values)
        return nearest if self.kept is None else nearest * self.kept[column]

    def in_order(self, factor: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Round column after column, and compensate each error in the remaining ones.

        ``factor`` (G, K, K) is that of :func:`inverse_factor`. Returns the multiples of the scales (K, G, R), and the
        squared error (G, R).
        """
        left, steps = self.wanted.clone(), torch.empty_like(self.wanted)
        error = torch.zeros_like(left[0])
        for low in range(0, len(left), _BLOCK):
            high = min(low + _BLOCK, len(left))
            inner = factor[:, low:high, low:high].permute(1, 2, 0)[..., None].contiguous()  # (k, k, G, 1)
            spread = torch.empty_like(left[low:high])
            for place, column in enumerate(range(low, high)):
                steps[column] = self.nearest(column, left[column] / scale, steps)
                spread[place] = (left[column] - steps[column] * scale) / inner[place, place]
                error += spread[place].square()
                left[column + 1 : high].addcmul_(spread[place], inner[place, place + 1 :], value=-1)
            left[high:] -= _times(spread, factor[:, low:high, high:])
        return steps, error


_LAST_TO_GO = 15  # the step from which on all required zeros are set
_SOLVED = 1e-5  # relative residual


def least_squares(weight: Tensor, second: Tensor, kept: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the weights (G, O, K), 0 where not ``kept``, with the least squared error relative to ``weight``.

    Conjugate gradients for all rows at once, preconditioned by the diagonal, from ``start`` if there is one.
    """
    mask = kept.to(weight.dtype)
    found = (weight if start is None else start) * mask
    diagonal = second.diagonal(dim1=1, dim2=2)[:, None, :]
    residual = ((weight - found) @ second) * mask
    scaled = residual / diagonal
    direction, length = scaled.clone(), (residual * scaled).sum(2, keepdim=True)
    enough = _SOLVED**2 * (weight.square() * diagonal).sum(2, keepdim=True)
    tiny = torch.finfo(weight.dtype).tiny
    for _ in range(40):  # conjugate gradients mostly end before, at _SOLVED; each step is a product with the moments
        if bool((length <= enough).all()):
            break
        product = (direction @ second) * mask
        step = length / (direction * product).sum(2, keepdim=True).clamp_min(tiny)
        found += step * direction
        residual -= step * product
        scaled = residual / diagonal
        before, length = length, (residual * scaled).sum(2, keepdim=True)
        direction = scaled + length / before.clamp_min(tiny) * direction
    return found


def zeroed(weight: Tensor, second: Tensor, choose: KeptWeights) -> Tensor:
    """Return weights (G, O, K) with the zeros that the others compensate best; ``second`` as for :func:`rounded`.

    The alternating direction method of multipliers couples unconstrained weights with weights that have zeros, while
    the number of zeros grows; the remaining weights are then fitted exactly.
    """
    # In units in which each input has a second moment of 1, the square of a weight is its own contribution.
    unit = second.diagonal(dim1=1, dim2=2).sqrt()[:, None, :]
    wanted, moments = weight * unit, second / (unit * unit.transpose(1, 2))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments + torch.eye(moments.shape[1]).to(moments)))
    goal, free, dual = wanted @ moments, wanted, torch.zeros_like(wanted)
    for step in range(1, 25):  # those after _LAST_TO_GO keep the number of zeros, while the choice of zeros settles
        shifted = free + dual
        sparse = shifted * choose(shifted.square(), min(1.0, step / _LAST_TO_GO))
        dual = shifted - sparse
        free = (goal + sparse - dual) @ inverse
    return least_squares(wanted, moments, choose((free + dual).square(), 1.0), start=free) / unit


def adapted(weight: Tensor, second: Tensor, constraint: UpdateConstraint) -> AdaptedWeight:
    """Return the weights (G, O, K) within ``constraint`` whose outputs are nearest to those of ``weight``.

    ``second`` is as for :func:`rounded`; zeros are chosen first, then the kept weights are rounded.
    """
    found = weight if constraint.kept is None else zeroed(weight, second, constraint.kept)
    if constraint.grid is None:
        return AdaptedWeight(found)
    return rounded(found, second, constraint.grid, kept=None if constraint.kept is None else found != 0)
