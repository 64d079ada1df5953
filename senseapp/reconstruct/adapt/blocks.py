"""Block-wise tuning after the closed forms: each block's outputs are fitted to the uncompressed network's.

Constraints of the compression hold: rounded weights stay on their grid, and chosen zeros stay zero. All other
parameters are optimised by gradient descent on the squared error of the block's outputs, for inputs as they arrive in
the compressed network: first the affine parameters of norms and the biases of compressed layers, then their weights
too. Gradients stay within a block, and a result is kept only if it is better on images held out from the descent.

Sources: Li et al. 2021, "BRECQ", algorithm 1, for the order; Nagel et al. 2020, "Up or down? Adaptive rounding for
post-training quantization" (AdaRound), eq. 21 to 25, for weights that move between two grid points.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from senseapp.networks.profile import BATCH_NORMS
from senseapp.networks.trace import Call
from senseapp.reconstruct.adapt.weights import Adaptation, LayerVisit
from senseapp.reconstruct.repair import Repair

_STRETCH = 0.1  # of the sigmoid on both sides of 0 and 1, so that both are reached
_UNDECIDED = 0.02  # from 0 and 1 at least, at first
_SOFT = 0.2  # share of the steps in which weights may stay between grid points
_NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


class _FreeWeight(Protocol):
    """The weight of an adapted layer while it is tuned.

    Attributes:
        parameter: the layer's parameter.
        value: the optimised variable.
        rate: its learning rate, at first.
    """

    parameter: nn.Parameter
    value: nn.Parameter
    rate: float

    def take_gradient(self, penalty: float, sharpness: float) -> None:
        """Propagate the gradient of ``parameter`` to ``value``."""
        ...

    def put(self, *, settled: bool = False) -> None:
        """Set ``parameter`` from ``value``; if ``settled``, to a value that satisfies the constraint."""
        ...


class _WithZeros:
    """A weight without a grid, whose zeros are fixed."""

    def __init__(self, layer: LayerVisit) -> None:
        self.parameter = layer.weight.parameter
        weight = self.parameter.detach()
        self._kept = weight != 0
        self.value = nn.Parameter(weight.clone())
        # Of the mean size of weights that are on no grid, at first.
        self.rate = 3e-3 * float(weight.abs().sum() / self._kept.sum().clamp_min(1))

    def take_gradient(self, penalty: float, sharpness: float) -> None:
        """See :class:`_FreeWeight`."""
        del penalty, sharpness
        if self.parameter.grad is not None:
            self.value.grad = self.parameter.grad * self._kept

    def put(self, *, settled: bool = False) -> None:
        """See :class:`_FreeWeight`."""
        del settled
        self.parameter.data.copy_(self.value.detach())


class _Rounded:
    """A weight on a grid of integers, each of which moves between the two nearest to its unrounded optimum."""

    rate = 0.1  # of the sigmoid's argument, at first

    def __init__(self, layer: LayerVisit, scale: Tensor, unrounded: Tensor, largest: float) -> None:
        self.parameter = layer.weight.parameter
        weight = self.parameter.detach()
        self._scale = scale.to(weight).reshape(-1, *(1,) * (weight.dim() - 1))
        self._zero = None if layer.constraint.kept is None else weight == 0
        wanted = layer.product.weight(unrounded, weight).clamp(-largest, largest)
        self._below = wanted.floor().clamp_max(largest - 1)
        share = (wanted - self._below).clamp(_UNDECIDED, 1 - _UNDECIDED)
        self.value = nn.Parameter(torch.logit((share + _STRETCH) / (1 + 2 * _STRETCH)))

    def take_gradient(self, penalty: float, sharpness: float) -> None:
        """See :class:`_FreeWeight`; the ``penalty`` is for each weight between grid points."""
        if self.parameter.grad is None:
            return
        share = self._share()
        loss = (self._weight(share) * self.parameter.grad).sum()
        if penalty:
            loss = loss + penalty * (1 - (2 * share - 1).abs().pow(sharpness)).sum()
        (self.value.grad,) = torch.autograd.grad(loss, self.value)

    def put(self, *, settled: bool = False) -> None:
        """See :class:`_FreeWeight`."""
        share = self._share().detach()
        self.parameter.data.copy_(self._weight(share.round() if settled else share))

    def _share(self) -> Tensor:
        """Return the position of each weight between the grid points below and above it, 0 to 1."""
        return (torch.sigmoid(self.value) * (1 + 2 * _STRETCH) - _STRETCH).clamp(0, 1)

    def _weight(self, share: Tensor) -> Tensor:
        weight = (self._below + share) * self._scale
        return weight if self._zero is None else weight.masked_fill(self._zero, 0.0)


def _free_weight(layer: LayerVisit) -> _FreeWeight | None:
    """Return the tunable form of the weight of ``layer``; None for grids whose points are not integers."""
    grid, found = layer.constraint.grid, layer.found
    if grid is None:
        return _WithZeros(layer)
    if not grid.integers or found is None or found.scale is None or found.unrounded is None:
        return None
    return _Rounded(layer, found.scale, found.unrounded, grid.largest)


class _Descent:
    """Optimiser of ``affine`` parameters and ``weights`` of a block whose initial error is ``error``.

    A context in which these take gradients; on exit, weights satisfy the constraint of the compression.
    """

    def __init__(self, affine: Sequence[nn.Parameter], weights: Sequence[_FreeWeight], error: float) -> None:
        self._weights, self.num_steps = weights, 300 if weights else 80
        self.parameters = (*affine, *(weight.parameter for weight in weights))
        # Times the block's error at first, shared by all its weights.
        self._penalty = 1e5 * error / max(1, sum(weight.value.numel() for weight in weights))
        usual = float(torch.cat([parameter.detach().flatten() for parameter in affine]).abs().mean()) if affine else 0.0
        # Of the mean size of the block's norms and biases, at first.
        groups = [{"params": list(affine), "lr": 3e-3 * usual}] if affine else []
        groups += [{"params": [weight.value], "lr": weight.rate} for weight in weights]
        self._optimizer = torch.optim.Adam(groups)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, self.num_steps)
        self._step = 0

    def __enter__(self) -> _Descent:
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        for weight in self._weights:
            weight.put()
        return self

    def __exit__(self, *_: object) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(False)
            parameter.grad = None
        for weight in self._weights:
            weight.put(settled=True)

    def step(self, loss: Tensor) -> None:
        """Make one descent step."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        hard = (self._step / self.num_steps - _SOFT) / (1 - _SOFT)
        first, last = (20.0, 2.0)  # exponent of the penalty for being between grid points, at first and at last
        for weight in self._weights:
            weight.take_gradient(self._penalty if hard >= 0 else 0.0, first + (last - first) * max(0.0, hard))
        self._optimizer.step()
        self._schedule.step()
        for weight in self._weights:
            weight.put()
        self._step += 1


class TunedBlocks(Repair):
    """Fits an :class:`Adaptation`, then tunes its network block by block; can undo both."""

    def __init__(self, adaptation: Adaptation, progress: Callable[[str], None]) -> None:
        self._adaptation, self._progress = adaptation, progress
        self.title = f"{adaptation.title}, blocks tuned"
        self._blocks = tuple(_blocks(adaptation))
        affine = [each for call in self._blocks for each in self._affine(adaptation.model.get_submodule(call.module))]
        self._old = [(parameter, parameter.detach().clone()) for parameter in affine]

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Adapt and tune the initial network; if the result is not finite, undo it and return False."""
        self.undo()
        if not self._adaptation.fit(batches):
            return False
        generator = torch.Generator().manual_seed(0)
        with self._adaptation.streams(batches) as (original, changed):
            for number, call in enumerate(self._blocks, start=1):
                self._progress(f"Tuning {call.module}, block {number} of {len(self._blocks)}")
                inputs = [torch.cat(stream.inputs(call.module, call.start)).clone() for stream in (original, changed)]
                with torch.no_grad():
                    wanted = original.module(call.module)(inputs[0])
                self._tune(changed.module(call.module), inputs[1], wanted, generator)
        finite = self._adaptation.is_finite() and all(bool(parameter.isfinite().all()) for parameter, _ in self._old)
        if not finite:
            self.undo()
        return finite

    def undo(self) -> None:
        """Restore the initial network."""
        for parameter, old in self._old:
            parameter.data.copy_(old)
        self._adaptation.undo()

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on the adaptation and the tuning."""
        done = (
            f"Then {len(self._blocks)} blocks were tuned to the original's outputs: norms, biases, and weights within "
            "what the compression allows."
        )
        return (*self._adaptation.sentences(fitted=fitted), *((done,) if fitted else ()))

    def _tune(self, block: nn.Module, inputs: Tensor, wanted: Tensor, generator: torch.Generator) -> None:
        """Run the descent without and with weights; keep what does best on images that it is not fitted to."""
        held_back = max(1, len(inputs) // 4)  # one image in so many, for validation
        judge = partial(_error, block, inputs[:held_back], wanted[:held_back])
        inputs, wanted = inputs[held_back:], wanted[held_back:]
        affine, layers = self._affine(block), self._layers_in(block)
        for weights in ([], [free for layer in layers if (free := _free_weight(layer)) is not None]):
            changed = [*affine, *(weight.parameter for weight in weights)]
            if not changed:
                continue
            before, least = [parameter.detach().clone() for parameter in changed], judge()
            with _Descent(affine, weights, least) as descent:
                for _ in range(descent.num_steps):
                    chosen = torch.randperm(len(inputs), generator=generator)[:16]
                    descent.step(functional.mse_loss(block(inputs[chosen].clone()), wanted[chosen]))
            if not judge() < least:
                for parameter, value in zip(changed, before, strict=True):
                    parameter.data.copy_(value)

    def _layers_in(self, block: nn.Module) -> list[LayerVisit]:
        """Return the adapted layers of ``block``."""
        inside = {id(module) for module in block.modules()}
        return [layer for layer in self._adaptation.layers.values() if id(layer.weight.module) in inside]

    def _affine(self, block: nn.Module) -> list[nn.Parameter]:
        """Return the affine parameters of the norms of ``block``, and the biases of its adapted layers."""
        norms = [module for module in block.modules() if isinstance(module, _NORMS)]
        biases = [layer.bias for layer in self._layers_in(block)]
        found = [*(each for norm in norms for each in norm.parameters(recurse=False)), *biases]
        return list({id(each): each for each in found if isinstance(each, nn.Parameter)}.values())


def _error(block: nn.Module, inputs: Tensor, wanted: Tensor) -> float:
    with torch.no_grad():
        return float(functional.mse_loss(block(inputs.clone()), wanted))


def _blocks(adaptation: Adaptation) -> Iterator[Call]:
    """Yield, in order, the direct parents of adapted layers, without those inside another one.

    Only modules that are called once with one tensor and return one; other layers keep their closed-form update.
    """
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in adaptation.trace.calls:
        calls[call.module].append(call)
    parents = dict.fromkeys(name.rpartition(".")[0] for name in adaptation.layers)
    chosen = [calls[name][0] for name in parents if name and len(calls[name]) == 1]
    chosen = sorted((call for call in chosen if call.alone and call.output_shape), key=lambda call: call.start)
    return (call for call in chosen if not any(each.start < call.start and call.end < each.end for each in chosen))
