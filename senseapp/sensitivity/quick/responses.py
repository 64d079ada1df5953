"""How far a compressed layer's output moves along a pull: by running the layer, or by leaving channels out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from senseapp.errors import MeasurementFailed
from senseapp.layers import tensors_in
from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.transforms import Applied, ChannelCompressor, Compressor, Prepared, Target, WeightCompressor

__all__ = ["ChannelResponses", "Pull", "Responses", "WeightResponses", "responses_of"]

Pull: TypeAlias = list[Tensor]  # one (N,) tensor of per-image inner products for each direction
Key: TypeAlias = tuple[str, float]
Calls: TypeAlias = Mapping[str, Sequence[LayerCall]]


class Responses(Protocol):
    """Inner products of the output's change with the pull, for one kind of compression.

    Attributes:
        watched: modules to record, by name.
        at_inputs: whether gradients are wanted at the modules' inputs rather than their outputs.
    """

    watched: dict[str, nn.Module]
    at_inputs: bool

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Make ready every target and level that can be estimated, and say what each would truly do."""
        ...

    def pulls(self, calls: Calls, key: Key, num_images: int, num_directions: int) -> Pull | None:
        """Return the inner products for ``key``, or None if the recorded calls do not show it."""
        ...


class WeightResponses:
    """Runs the layer again with compressed weights (and inputs) on what it took in."""

    at_inputs = False

    def __init__(self, compressor: WeightCompressor, model: nn.Module) -> None:
        self._compressor = compressor
        self._prepared: dict[Key, Prepared] = {}
        names = {name for target in compressor.targets for name in target.modules}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._modules: dict[str, tuple[str, ...]] = {target.layer: target.modules for target in compressor.targets}

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Compute every compressed weight once."""
        for target in targets:
            for level in levels:
                try:
                    self._prepared[target.layer, level] = self._compressor.prepare(target, level)
                except MeasurementFailed:
                    continue  # the exact measurement records the reason
        return {key: prepared.applied for key, prepared in self._prepared.items()}

    def pulls(self, calls: Calls, key: Key, num_images: int, num_directions: int) -> Pull | None:
        """Return the inner products of the layer's changed output with each direction's gradient."""
        recorded = [(name, call) for name in self._modules[key[0]] for call in calls.get(name, ())]
        if not recorded or any(len(call.gradients) != num_directions for _, call in recorded):
            return None
        totals = [torch.zeros(num_images) for _ in range(num_directions)]
        with self._prepared[key].active():
            for name, call in recorded:
                changed = next(tensors_in(self.watched[name](*call.args, **call.kwargs)))
                response = (changed - call.output).reshape(num_images, -1)
                for total, gradient in zip(totals, call.gradients, strict=True):
                    total += torch.linalg.vecdot(response, gradient.reshape(num_images, -1)).cpu()
        return totals


class ChannelResponses:
    """Takes channels away at the inputs of the layers that read them.

    The response at a reader is minus its answer to the removed channels; its inner product with the gradient at
    the reader's output equals the removed inputs times the gradient there, so one sum per channel serves every
    level, and the members of a group add up before squaring.
    """

    at_inputs = True

    def __init__(self, compressor: ChannelCompressor, model: nn.Module) -> None:
        self._compressor = compressor
        self._removed: dict[Key, Mapping[str, Tensor]] = {}
        self._sums: tuple[int, dict[str, list[Tensor]]] = (0, {})
        names = {name for target in compressor.targets for name in compressor.readers(target)}
        self.watched = {name: model.get_submodule(name) for name in names}

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Choose the channels of every target and level once."""
        applied: dict[Key, Applied] = {}
        for target in targets:
            for level in levels:
                try:
                    applied[target.layer, level], removed = self._compressor.removed_inputs(target, level)
                except MeasurementFailed:
                    continue  # the exact measurement records the reason
                self._removed[target.layer, level] = removed
        return applied

    def pulls(self, calls: Calls, key: Key, num_images: int, num_directions: int) -> Pull | None:
        """Return minus the sum over removed channels of input times gradient, for each direction."""
        if self._sums[0] != id(calls):
            self._sums = (
                id(calls),
                {name: self._per_channel(name, found, num_images) for name, found in calls.items()},
            )
        sums = self._sums[1]
        totals = [torch.zeros(num_images) for _ in range(num_directions)]
        for name, channels in self._removed[key].items():
            if len(sums.get(name, ())) != num_directions:
                return None
            for total, per_channel in zip(totals, sums[name], strict=True):
                total -= per_channel[:, channels].sum(dim=1)
        return totals

    def _per_channel(self, name: str, calls: Sequence[LayerCall], num_images: int) -> list[Tensor]:
        """Return input times gradient summed over positions, one (N, C) tensor for each direction."""
        totals: list[Tensor] = []
        for call in calls:
            data = call.args[0]
            spatial = isinstance(self.watched[name], (nn.Conv1d, nn.Conv2d, nn.Conv3d))
            axis = 1 if spatial else data.dim() - 1
            products = [_over_positions(data * gradient, axis, num_images).cpu() for gradient in call.input_gradients]
            totals = [a + b for a, b in zip(totals, products, strict=True)] if totals else products
        return totals


def _over_positions(product: Tensor, axis: int, num_images: int) -> Tensor:
    channels_last = product.movedim(axis, -1)
    return channels_last.reshape(num_images, -1, channels_last.shape[-1]).sum(dim=1)


def responses_of(compressor: Compressor, model: nn.Module) -> Responses:
    """Return the way to estimate what ``compressor`` does."""
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, model)
    return WeightResponses(cast(WeightCompressor, compressor), model)
