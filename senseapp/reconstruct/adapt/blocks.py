"""Block-wise tuning after the closed forms: each block's outputs are fitted to the uncompressed network's.

Constraints of the compression hold: rounded weights stay on their grid, and chosen zeros stay zero. First the affine
parameters of norms and the biases of compressed layers are optimised by gradient descent on the squared error of the
block's outputs, for inputs as they arrive in the compressed network, then their weights too. Gradients stay within a
block, and a result is kept only if it is better on images held out from the descent.

Sources: Li et al. 2021, "BRECQ", algorithm 1, for the order; Nagel et al. 2020, "Up or down? Adaptive rounding for
post-training quantization" (AdaRound), eq. 21 to 25, for weights that move between two grid points.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from senseapp.core.registry import grouped
from senseapp.measure.context import MeasurementContext
from senseapp.networks.profile import BATCH_NORMS
from senseapp.networks.trace import Call
from senseapp.reconstruct.adapt.sequential_pass import SequentialPass
from senseapp.reconstruct.adapt.weights import Adaptation, AdaptedLayer

_STRETCH = 0.1  # of the sigmoid on both sides of 0 and 1, so that both are reached
_UNDECIDED = 0.02  # from 0 and 1 at least, at first
_SOFT = 0.2  # share of the steps in which weights may stay between grid points
_FIRST, _LAST = 20.0, 2.0  # exponent of the penalty for being between grid points
_NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


class TunedBlocks(SequentialPass):
    """Fits an :class:`Adaptation`, then tunes its network block by block; can undo both."""

    def __init__(
        self,
        dense: MeasurementContext,
        adaptation: Adaptation,
        batches: Sequence[Tensor],
        *,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(dense, adaptation.model, batches, progress=progress)
        self.title, self._adaptation = f"{adaptation.title}, blocks tuned", adaptation
        for call in _blocks(adaptation):
            block, before = (each.get_submodule(call.module) for each in (adaptation.model, dense.model))
            inside = {id(module) for module in block.modules()}
            layers = [each for each in adaptation.layers.values() if id(each.weight.module) in inside]
            affine = _affine(block, layers)
            changed = [*affine, *(each.weight.parameter for each in layers)]
            self.visit(call.module, partial(_tune, before, block, layers, affine), changed, call.start)

    def passed(self, batches: Sequence[int]) -> bool:
        """Adapt the network, then tune it."""
        return self._adaptation.fit(batches) and super().passed(batches)

    def undo(self) -> None:
        """Restore the initial network."""
        super().undo()
        self._adaptation.undo()

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the adaptation and the tuning."""
        done = "Then blocks were tuned to the original's outputs: normalisation, biases, weights as compression allows."
        return (*self._adaptation.sentences(fitted=fitted), *((done,) if fitted else ()))


class _FreeWeight:
    """The weight of an adapted layer of a block as a function of ``value``, which a descent of ``rate`` changes.

    Without a grid, all but its zeros are free; on a grid of integers, each weight moves between the two nearest to its
    unrounded optimum.
    """

    def __init__(self, block: nn.Module, layer: AdaptedLayer) -> None:
        self.parameter, found, grid = layer.weight.parameter, layer.found, layer.constraint.grid
        self.name = next(name for name, each in block.named_parameters() if each is self.parameter)
        weight = self.parameter.detach()
        self._free = torch.ones_like(weight) if grid and layer.constraint.kept is None else (weight != 0).to(weight)
        self._below: Tensor | None = None
        if grid is None or found is None or found.scale is None or found.unrounded is None:
            self.value = nn.Parameter(weight.clone())
            # Of the mean size of weights that are on no grid, at first.
            self.rate = 3e-3 * float(weight.abs().sum() / self._free.sum().clamp_min(1))
            return
        self._scale = found.scale.to(weight).reshape(-1, *(1,) * (weight.dim() - 1))
        wanted = layer.product.weight(found.unrounded, weight).clamp(-grid.largest, grid.largest)
        self._below = wanted.floor().clamp_max(grid.largest - 1)
        share = (wanted - self._below).clamp(_UNDECIDED, 1 - _UNDECIDED)
        self.value = nn.Parameter(torch.logit((share + _STRETCH) / (1 + 2 * _STRETCH)))
        self.rate = 0.1  # of the sigmoid's argument, at first

    def _share(self) -> Tensor:
        """Return the position of each weight between the grid points below and above it, 0 to 1."""
        return (torch.sigmoid(self.value) * (1 + 2 * _STRETCH) - _STRETCH).clamp(0, 1)

    def weight(self, *, settled: bool = False) -> Tensor:
        """Return the weight; if ``settled``, one that satisfies the constraint."""
        if self._below is None:
            return self.value * self._free
        share = self._share()
        return (self._below + (share.round() if settled else share)) * self._scale * self._free

    def undecided(self, sharpness: float) -> Tensor:
        """Return how far all weights are from grid points."""
        if self._below is None:
            return self.value.new_zeros(())
        return (1 - (2 * self._share() - 1).abs().pow(sharpness)).sum()


def _tune(
    dense: nn.Module,
    block: nn.Module,
    layers: Sequence[AdaptedLayer],
    affine: Sequence[nn.Parameter],
    original: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> None:
    """Run the descent without and with weights; keep what does best on images that it is not fitted to."""
    images, wanted = torch.cat(list(inputs)).clone(), dense(torch.cat(list(original)).clone())
    held_out = max(1, len(images) // 4)  # one image in so many, for validation

    def error() -> float:
        return float(functional.mse_loss(block(images[:held_out].clone()), wanted[:held_out]))

    # Grids whose points are no integers keep their closed-form update.
    free = [
        _FreeWeight(block, each) for each in layers if each.constraint.grid is None or each.constraint.grid.integers
    ]
    for weights in ([], free):
        changed = [*affine, *(each.parameter for each in weights)]
        if not changed:
            continue
        before, least = [parameter.detach().clone() for parameter in changed], error()
        with torch.enable_grad():
            _descend(block, affine, weights, (images[held_out:], wanted[held_out:]), least)
        if not error() < least:
            for parameter, value in zip(changed, before, strict=True):
                parameter.data.copy_(value)


def _descend(
    block: nn.Module,
    affine: Sequence[nn.Parameter],
    weights: Sequence[_FreeWeight],
    images: tuple[Tensor, Tensor],
    error: float,
) -> None:
    """Optimise ``affine`` parameters and ``weights`` of a block on inputs and outputs; its error at first is given."""
    num_steps, generator = 300 if weights else 80, torch.Generator().manual_seed(0)
    # Times the block's error at first, shared by all its weights.
    penalty = 1e5 * error / max(1, sum(each.value.numel() for each in weights))
    usual = float(torch.cat([each.detach().flatten() for each in affine]).abs().mean()) if affine else 0.0
    # Of the mean size of the block's norms and biases, at first.
    groups = [{"params": list(affine), "lr": 3e-3 * usual}] if affine else []
    optimizer = torch.optim.Adam([*groups, *({"params": [each.value], "lr": each.rate} for each in weights)])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for parameter in affine:
        parameter.requires_grad_(True)
    try:
        for step in range(num_steps):
            chosen = torch.randperm(len(images[0]), generator=generator)[:16]
            soft = {each.name: each.weight() for each in weights}
            found = functional_call(block, soft, (images[0][chosen].clone(),))
            loss = functional.mse_loss(found, images[1][chosen])
            if (hard := (step / num_steps - _SOFT) / (1 - _SOFT)) >= 0:
                sharpness = _FIRST + (_LAST - _FIRST) * hard
                loss = loss + penalty * sum(each.undecided(sharpness) for each in weights)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    finally:
        for parameter in affine:
            parameter.requires_grad_(False)
            parameter.grad = None
    for each in weights:
        each.parameter.data.copy_(each.weight(settled=True).detach())


def _affine(block: nn.Module, layers: Sequence[AdaptedLayer]) -> list[nn.Parameter]:
    """Return the affine parameters of the norms of ``block``, and the biases of its adapted layers."""
    norms = [module for module in block.modules() if isinstance(module, _NORMS)]
    found = [*(each for norm in norms for each in norm.parameters(recurse=False)), *(each.bias for each in layers)]
    return list({id(each): each for each in found if isinstance(each, nn.Parameter)}.values())


def _blocks(adaptation: Adaptation) -> Iterator[Call]:
    """Yield, in order, the parents of adapted layers that are called once with one tensor and return one."""
    calls = grouped((call.module, call) for call in adaptation.trace.calls)
    parents = dict.fromkeys(name.rpartition(".")[0] for name in adaptation.layers)
    chosen = [calls[name][0] for name in parents if name and len(calls.get(name, ())) == 1]
    chosen = sorted((call for call in chosen if call.alone and call.output_shape), key=lambda call: call.start)
    return (call for call in chosen if not any(each.start < call.start and call.end < each.end for each in chosen))
