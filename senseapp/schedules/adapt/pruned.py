"""After channels went, let the layers that read them take over what the channels that stayed tell of them.

A layer that lost input channels gets the weights with which its outputs come nearest to those of the uncompressed
network on the same images, by least squares with ridge towards its own weights: what the removed channels contributed
is predicted from those kept, and what earlier layers got wrong is made up for. Layers follow one another in forward
order within one pass, so each is fitted to the inputs that it will have, and the norms and biases behind it are matched
in between (:class:`~senseapp.schedules.repair.Matching`): least squares takes spread away, which they give back.

Source: Luo et al. 2017, "ThiNet", eq. 7, and He et al. 2017, "Channel Pruning", eq. 1 without its mask; here towards
the outputs of the uncompressed network, and with the strength of the ridge found on images that it is not fitted to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compressions import get
from senseapp.core.wording import plural
from senseapp.schedules.adapt.product import LayerProduct
from senseapp.schedules.apply import AppliedModel
from senseapp.schedules.repair import Matching, Part, sentences_on

# Of the inputs' mean variance, the strongest first. On EfficientNet-Lite0 with 30 % of its MACs pruned, photographs
# that nothing was fitted to lost .28 nats so, .39 from 10 on, and .47 from .1 on: layers alone ask for too much ridge.
_RIDGES = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
_ROWS = 4096  # of inputs, that a layer is fitted to
_ROW_BYTES = 512 * 2**20  # of all rows of all layers


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
        """Return the sums about the means, which stay sums about zero."""
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
        """Return the weights (O, K) of least squared error, drawn towards ``weight`` by ``ridge``."""
        strength = ridge * self.xx.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
        damped = self.xx + strength * torch.eye(len(self.xx), dtype=self.xx.dtype, device=self.xx.device)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):  # singular to rounding
            return weight
        return weight + torch.cholesky_solve(self.xy - self.xx @ weight.T, factor).T


def taken_over(inputs: Tensor, wanted: Tensor, weight: Tensor, *, intercept: bool = True) -> tuple[Tensor, Tensor]:
    """Return new weights (O, K) and bias (O,), float64, for a layer whose outputs are to be ``wanted``.

    ``inputs`` (N, P, K) and ``wanted`` (N, P, O) are those of N images at P positions, and ``weight`` (O, K) is what
    the ridge draws towards. Its strength is the one that does best on every other image when fitted to the rest, and
    the other way round; where none does, the weights stay. Without ``intercept`` the bias is 0.
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
    """Return the ridge of least error on the halves it is not fitted to; infinite where that of no change is least."""
    if len(halves) < 2:
        return math.inf
    best, least = math.inf, sum(half.error(weight) for half in halves)
    for ridge in _RIDGES:
        pairs = zip(halves, reversed(halves), strict=True)
        error = sum(judge.error(half.fitted(weight, ridge)) for half, judge in pairs)
        if error < least:
            best, least = ridge, error
        elif best > ridge and not math.isinf(best):
            break  # weaker ones fit more of what the other half does not have
    return best


def readers(applied: AppliedModel, dense: nn.Module) -> dict[str, LayerProduct]:
    """Return the layers that read fewer channels than in ``dense`` and whose weights nothing else compresses."""
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


class Reconstruction:
    """Gives the readers of removed channels new weights, matches norms and biases in between, and undoes it.

    Args:
        applied: the pruned network.
        dense: the network before.
        batches: the images (N, C, H, W) that ``matching`` knows.
        matching: of the statistics of the same network; used by nobody else meanwhile.
        progress: is told each layer; may stop the work by raising, since the network is a copy.

    Attributes:
        readers: the layers that get new weights, by name.
    """

    title = "Weights that read removed channels fitted anew, statistics matched"

    def __init__(
        self,
        applied: AppliedModel,
        dense: nn.Module,
        batches: Sequence[Tensor],
        matching: Matching,
        *,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._matching, self._progress = applied.model, matching, progress
        self.readers = readers(applied, dense)
        images, width = sum(map(len, batches)), sum(math.prod(p.weight_shape[1:]) for p in self.readers.values())
        self._images = images
        rows = min(_ROWS, _ROW_BYTES // (4 * max(1, width)))
        self._positions = max(1, rows // max(1, images))
        self._old = {name: self._stored(name) for name in self.readers}
        self._wanted = self._outputs_of(dense, batches, applied.kept_channels) if self.readers else {}
        self._inputs: dict[str, dict[Part, Tensor]] = {}

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on what was done."""
        own = f"The weights of {plural(len(self.readers), 'layer')} that read removed channels were fitted anew."
        return (*((own,) if fitted else ()), *sentences_on(self._matching, fitted=fitted, count=self._images))

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Fit the network as it was at first on all or some batches; if not finite, undo and return False."""
        self.undo()
        self._inputs = {name: {} for name in self.readers}
        with self._watched(batches):
            fitted = self._matching.fit(batches)
        self._inputs.clear()
        finite = fitted and all(bool(self._weight(name).isfinite().all()) for name in self.readers)
        if not finite:
            self.undo()
        return finite

    def undo(self) -> None:
        """Put the network back as it was."""
        self._matching.undo()
        for name, (weight, bias) in self._old.items():
            self._store(name, weight, bias)

    @contextmanager
    def fitted(self, batches: Sequence[int] | None = None) -> Iterator[bool]:
        """Fit the network inside only; yields whether every value is finite, see :meth:`fit`."""
        try:
            yield self.fit(batches)
        finally:
            self.undo()

    def _outputs_of(
        self, dense: nn.Module, batches: Sequence[Tensor], kept: Mapping[str, Sequence[int]]
    ) -> dict[str, dict[Part, Tensor]]:
        """Return what the readers put out in ``dense``, (N, P, O) of each batch and call, of channels kept."""
        wanted: dict[str, dict[Part, Tensor]] = {name: {} for name in self.readers}

        def note(name: str, part: Part, output: Tensor) -> None:
            rows = self.readers[name].outputs(output, self._positions, _generator(part))
            wanted[name][part] = rows[..., list(kept[name])] if name in kept else rows

        with _calls(dense, self.readers, range(len(batches)), after=note), torch.no_grad():
            for batch in batches:
                dense(batch.clone())
        return wanted

    @contextmanager
    def _watched(self, batches: Sequence[int] | None) -> Iterator[None]:
        every = next(iter(self._wanted.values()), {})
        chosen = sorted({batch for batch, _ in every}) if batches is None else list(batches)
        with _calls(self._model, self.readers, chosen, before=self._renew):
            yield

    def _renew(self, name: str, part: Part, given: Tensor) -> None:
        """Give a layer new weights just before it computes, from all inputs that it has had so far."""
        product, wanted, seen = self.readers[name], self._wanted[name], self._inputs[name]
        if part not in wanted:
            return
        self._progress(f"{self.title}: {name}, {list(self.readers).index(name) + 1} of {len(self.readers)}")
        seen[part] = product.rows(given.detach(), self._positions, _generator(part))  # (G, N P, K)
        old, bias = self._old[name]
        matrices = product.matrix(old)  # (G, O/G, K)
        count = {known: len(wanted[known]) for known in seen}
        new, offsets = [], []
        for group, matrix in enumerate(matrices):
            each = slice(group * len(matrix), (group + 1) * len(matrix))
            inputs = torch.cat([rows[group].reshape(count[known], -1, rows.shape[2]) for known, rows in seen.items()])
            goal = torch.cat([wanted[known][..., each] for known in seen])
            weight, offset = taken_over(inputs, goal, matrix, intercept=bias is not None or bool(self._matching.norms))
            new.append(weight)
            offsets.append(offset)
        self._store(name, product.weight(torch.stack(new), old), None if bias is None else torch.cat(offsets).to(bias))

    def _weight(self, name: str) -> nn.Parameter:
        return self._model.get_submodule(name).get_parameter("weight")

    def _stored(self, name: str) -> tuple[Tensor, Tensor | None]:
        bias = dict(self._model.get_submodule(name).named_parameters(recurse=False)).get("bias")
        return self._weight(name).detach().clone(), None if bias is None else bias.detach().clone()

    def _store(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        module = self._model.get_submodule(name)
        module.get_parameter("weight").data.copy_(weight)
        if bias is not None:
            module.get_parameter("bias").data.copy_(bias)
        self._matching.start_from(name)


def _generator(part: Part) -> torch.Generator:
    """Return what draws positions: the same ones of a batch's call in both networks."""
    return torch.Generator().manual_seed(1000 * part[0] + part[1])


@contextmanager
def _calls(
    model: nn.Module, layers: Mapping[str, object], batches: Sequence[int], *, before: Any = None, after: Any = None
) -> Iterator[None]:
    """Report each call of ``layers`` with its input or output; passes of ``model`` are ``batches`` in turn, again."""
    passes, calls = 0, Counter[str]()

    def start(_module: nn.Module, _inputs: object) -> None:
        nonlocal passes
        passes += 1
        calls.clear()

    def part_of(name: str) -> Part:
        calls[name] += 1
        return batches[(passes - 1) % len(batches)], calls[name] - 1

    def watch(name: str, module: nn.Module) -> Any:
        if before is not None:
            return module.register_forward_pre_hook(lambda _m, given: before(name, part_of(name), given[0]))
        return module.register_forward_hook(lambda _m, _given, output: after(name, part_of(name), output))

    handles = [model.register_forward_pre_hook(start)]
    try:
        handles += [watch(name, model.get_submodule(name)) for name in layers]
        yield
    finally:
        for handle in handles:
            handle.remove()
