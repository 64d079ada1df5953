"""Which way of estimating serves a compression: running layers again, or leaving channels out.

How far outputs move along a pull when channels are taken away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from senseapp.compressions.base import Applied, ChannelCompressor, Compressor, Target, WeightCompressor
from senseapp.core.errors import MeasurementFailed
from senseapp.engine.quick.protocol import Key, Responses, batch_axes, shapes_in
from senseapp.engine.quick.recorder import LayerCall
from senseapp.engine.quick.weight_responses import WeightResponses
from senseapp.layers.profile import CONVOLUTIONS
from senseapp.layers.trace import CallTrace


class ChannelResponses:
    """Takes channels away at the inputs of the layers that read them.

    The response at a reader is minus its answer to the removed channels; its inner product with the gradient at
    the reader's output equals the removed inputs times the gradient there, so one sum per channel serves every
    level, and the readers of a group add up.
    """

    at_inputs = True
    downstream: Mapping[str, Sequence[Sequence[nn.Module]]] = {}

    def __init__(self, compressor: ChannelCompressor, model: nn.Module, trace: CallTrace) -> None:
        self._compressor = compressor
        self._removed: dict[Key, Mapping[str, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        names = {name for target in compressor.targets for name in compressor.readers(target)}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._single = shapes_in(trace, names, of_inputs=True)

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

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Sum input times gradient over positions, for every channel."""
        axes = batch_axes(self._single[name], [call.args[0].shape for call in calls], num_images)
        if axes is None or any(len(call.input_gradients) != num_directions for call in calls):
            return
        parts = [self._per_channel(name, call, axis, num_images) for call, axis in zip(calls, axes, strict=True)]
        self._sums[name] = torch.stack(parts).sum(dim=0).cpu()  # (N, directions, C)

    def collect(self) -> dict[Key, Tensor]:
        """Return minus the sum over removed channels of input times gradient, for each target and level."""
        sums, self._sums = self._sums, {}
        found = {}
        for key, removed in self._removed.items():
            if removed and sums.keys() >= removed.keys():
                lost = [sums[name][:, :, channels].sum(dim=2) for name, channels in removed.items()]
                found[key] = -torch.stack(lost).sum(dim=0)
        return found

    def _per_channel(self, name: str, call: LayerCall, batch: int, num_images: int) -> Tensor:
        data = call.args[0]
        convolves = isinstance(self.watched[name], CONVOLUTIONS)
        channels = 1 if convolves else data.dim() - 1
        order = (batch, *(axis for axis in range(data.dim()) if axis not in (batch, channels)), channels)
        products = [(data * gradient).permute(order) for gradient in call.input_gradients]
        return torch.stack([p.reshape(num_images, -1, p.shape[-1]).sum(dim=1) for p in products], dim=1)


def responses_of(
    compressor: Compressor,
    model: nn.Module,
    trace: CallTrace,
    norms: Mapping[str, nn.BatchNorm2d],
) -> Responses:
    """Return the way to estimate what ``compressor`` does."""
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, model, trace)
    return WeightResponses(cast(WeightCompressor, compressor), model, trace, norms)
