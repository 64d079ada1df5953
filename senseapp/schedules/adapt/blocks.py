"""After the closed forms, block by block: norms and biases are tuned until a block's outputs are the original's.

What compression fixes stays fixed: rounded weights on their grid, and zeros. The affine parts of norms, which scale and
shift each channel, and the biases of compressed layers are found by descent on the squared error of the block's
outputs, for inputs as they arrive in the compressed network. Gradients never leave a block.

Source: Li et al. 2021, "BRECQ", algorithm 1, here for channels' scales and shifts in place of the rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from senseapp.layers.profile import BATCH_NORMS
from senseapp.layers.trace import Call
from senseapp.schedules.adapt.walk import Stream
from senseapp.schedules.adapt.weights import Adaptation
from senseapp.schedules.repair import Repair

_STEPS, _IMAGES = 80, 16  # for each block, and of each step
_RATE = 3e-3  # of the mean size of the block's parameters, at first
_NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


class TunedBlocks(Repair):
    """Fits an :class:`Adaptation`, then tunes its network block by block, and undoes both; a form of repair."""

    def __init__(self, adaptation: Adaptation, progress: Callable[[str], None]) -> None:
        self._adaptation, self._progress = adaptation, progress
        self.title = f"{adaptation.title}, blocks tuned"
        self._blocks = tuple(_blocks(adaptation))
        model = adaptation.model
        self._tuned = {call.index: _tunable(model.get_submodule(call.module), adaptation) for call in self._blocks}
        every = {id(each): each for parameters in self._tuned.values() for each in parameters}
        self._old = [(parameter, parameter.detach().clone()) for parameter in every.values()]

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Adapt and tune the network as it was at first; if not finite, undo and return False."""
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
                self._tune(changed, call, inputs[1], wanted, generator)
        finite = all(bool(parameter.isfinite().all()) for parameter, _ in self._old)
        if not finite:
            self.undo()
        return finite

    def undo(self) -> None:
        """Put the network back as it was."""
        for parameter, old in self._old:
            parameter.data.copy_(old)
        self._adaptation.undo()

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on what was done."""
        done = f"Then the norms and biases of {len(self._blocks)} blocks were tuned to the original's outputs."
        return (*self._adaptation.sentences(fitted=fitted), *((done,) if fitted else ()))

    def _tune(self, stream: Stream, call: Call, inputs: Tensor, wanted: Tensor, generator: torch.Generator) -> None:
        """Descend; keep what was best on all the inputs, which may be what was there."""
        parameters, block = self._tuned[call.index], stream.module(call.module)
        if not parameters:
            return
        before = [parameter.detach().clone() for parameter in parameters]
        error = _error(block, inputs, wanted)
        usual = float(torch.cat([parameter.detach().flatten() for parameter in parameters]).abs().mean())
        descent = torch.optim.Adam(parameters, lr=_RATE * usual)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, _STEPS)
        for parameter in parameters:
            parameter.requires_grad_(True)
        try:
            for _ in range(_STEPS):
                chosen = torch.randperm(len(inputs), generator=generator)[:_IMAGES]
                descent.zero_grad()
                loss = functional.mse_loss(block(inputs[chosen].clone()), wanted[chosen])
                torch.autograd.backward(loss)
                descent.step()
                schedule.step()
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)
                parameter.grad = None
        if not _error(block, inputs, wanted) < error:
            for parameter, old in zip(parameters, before, strict=True):
                parameter.data.copy_(old)


def _error(block: nn.Module, inputs: Tensor, wanted: Tensor) -> float:
    with torch.no_grad():
        return float(functional.mse_loss(block(inputs.clone()), wanted))


def _blocks(adaptation: Adaptation) -> Iterator[Call]:
    """Yield, in order, the modules that adapted layers are directly in, but for those inside another of them.

    Only modules that are called once with one tensor and return one; other layers are left to the closed forms.
    """
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in adaptation.trace.calls:
        calls[call.module].append(call)
    parents = dict.fromkeys(name.rpartition(".")[0] for name in adaptation.layers)
    chosen = [calls[name][0] for name in parents if name and len(calls[name]) == 1]
    chosen = sorted((call for call in chosen if call.alone and call.output_shape), key=lambda call: call.start)
    return (call for call in chosen if not any(each.start < call.start and call.end < each.end for each in chosen))


def _tunable(block: nn.Module, adaptation: Adaptation) -> list[nn.Parameter]:
    """Return the affine parts of the norms of ``block``, and the biases of its adapted layers."""
    adapted = {id(adaptation.model.get_submodule(name)) for name in adaptation.layers}
    found: dict[int, nn.Parameter] = {}
    for module in block.modules():
        norm = isinstance(module, _NORMS)
        for name, parameter in module.named_parameters(recurse=False):
            if norm or (id(module) in adapted and name == "bias"):
                found[id(parameter)] = parameter
    return list(found.values())
