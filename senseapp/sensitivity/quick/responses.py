"""How far a compressed layer's output moves along a pull: by running the layer, or by leaving channels out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from senseapp.errors import MeasurementFailed
from senseapp.layers import CallTrace, tensors_in
from senseapp.sensitivity.quick.followers import followers_of
from senseapp.sensitivity.quick.recorder import Calls, LayerCall
from senseapp.sensitivity.quick.weight_gradients import inner_products, weight_gradients
from senseapp.transforms import Applied, ChannelCompressor, Compressor, Prepared, Target, WeightCompressor

__all__ = ["ChannelResponses", "Key", "Responses", "WeightResponses", "batch_axis", "responses_of"]

Key: TypeAlias = tuple[str, float]


class Responses(Protocol):
    """Inner products of the output's change with the pull, for one kind of compression.

    Attributes:
        watched: modules to record, by name.
        at_inputs: whether gradients are wanted at the modules' inputs rather than their outputs.
        followers: modules to record after each call of a watched one, by its name.
    """

    watched: dict[str, nn.Module]
    at_inputs: bool
    followers: Mapping[str, Sequence[Sequence[nn.Module]]]

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Make ready every target and level that can be estimated, and say what each would truly do."""
        ...

    def observing(self, calls: Calls, num_images: int, num_directions: int) -> AbstractContextManager[None]:
        """Take in what was recorded for a batch, and let go of it at the end of the block."""
        ...

    def pulls(self, key: Key) -> Tensor | None:
        """Return the inner products for ``key``, (N, directions); None if the recorded calls do not show it."""
        ...


@dataclass(slots=True)
class _SeenCall:
    """A call with its gradients as rows for inner products.

    Attributes:
        call: what was recorded.
        order: axes of the output, the batch first, then as they lie in memory.
        gradients: (N, values) for each direction.
    """

    call: LayerCall
    order: tuple[int, ...]
    gradients: list[Tensor]
    _stacked: Tensor | None = None

    @classmethod
    def of(cls, call: LayerCall, batch: int, num_images: int) -> _SeenCall:
        """Return ``call``, whose output counts images along the axis ``batch``."""
        strides = call.output.stride()
        # In the order that lies in memory, the many responses to come need no copy, and gradients mostly none.
        order = (batch, *sorted((a for a in range(call.output.dim()) if a != batch), key=lambda a: -strides[a]))
        rows = [_rows(gradient, order, num_images) for gradient in call.gradients]
        call.gradients.clear()
        return cls(call, order, rows)

    def inner_products(self, response: Tensor) -> Tensor:
        """Return the inner product of each image's response with each gradient, (N, directions)."""
        rows = _rows(response, self.order, len(self.gradients[0])).to(self.gradients[0].dtype)
        if rows.dtype is torch.bfloat16:  # four times as fast as bmm, which is the faster one in float32
            return torch.stack([torch.linalg.vecdot(each, rows) for each in self.gradients], dim=1).float()
        if self._stacked is None:
            self._stacked = torch.stack(self.gradients, dim=1)
            self.gradients = list(self._stacked.unbind(dim=1))  # not held twice
        return torch.bmm(rows[:, None], self._stacked.transpose(1, 2))[:, 0]


class WeightResponses:
    """Runs the layer again with compressed weights (and inputs) on what it took in, and its followers on the answer.

    Where nothing bends the answer, :mod:`senseapp.sensitivity.quick.weight_gradients` spares a pass for each level.
    """

    at_inputs = False

    def __init__(self, compressor: WeightCompressor, model: nn.Module, trace: CallTrace) -> None:
        self._compressor = compressor
        self._prepared: dict[Key, Prepared] = {}
        self._num_levels = 0
        self._seen: dict[str, list[_SeenCall]] = {}
        self._latest: tuple[str, list[Tensor | None]] | None = None
        names = {name for target in compressor.targets for name in target.modules}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._modules: dict[str, tuple[str, ...]] = {target.layer: target.modules for target in compressor.targets}
        chains = {name: found for name, found in followers_of(trace, model).items() if name in names}
        self.followers: Mapping[str, Sequence[Sequence[nn.Module]]] = {
            name: [[link.module for link in chain] for chain in found] for name, found in chains.items()
        }
        own = _shapes(trace, names, of_inputs=False)
        # Of each call: the shape of its output for one image, then of each follower's.
        self._single = {
            name: [[shape, *(link.shape for link in chain)] for shape, chain in zip(own[name], found, strict=True)]
            for name, found in chains.items()
        }

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Compute every compressed weight once."""
        self._num_levels = len(levels)
        for target in targets:
            for level in levels:
                try:
                    self._prepared[target.layer, level] = self._compressor.prepare(target, level)
                except MeasurementFailed:
                    continue  # the exact measurement records the reason
        return {key: prepared.applied for key, prepared in self._prepared.items()}

    @contextmanager
    def observing(self, calls: Calls, num_images: int, num_directions: int) -> Iterator[None]:
        """Take the gradients at the layers' outputs."""
        for name, found in calls.items():
            axes = self._axes(name, found, num_images)
            if axes is None or any(len(call.gradients) != num_directions for call in found):
                continue
            self._seen[name] = [_SeenCall.of(call, axis, num_images) for call, axis in zip(found, axes, strict=True)]
        yield
        self._seen, self._latest = {}, None  # before the next batch is recorded: both would take twice the memory

    def _axes(self, name: str, found: Sequence[LayerCall], num_images: int) -> list[int] | None:
        shapes = self._single.get(name, [])
        if len(shapes) != len(found):
            return None
        single = [own[len(call.followers)] for own, call in zip(shapes, found, strict=True)]
        return _batch_axes(single, [call.output.shape for call in found], num_images)

    def pulls(self, key: Key) -> Tensor | None:
        """Return the inner products of the layer's changed output with each direction's gradient."""
        names = self._modules[key[0]]
        if not all(name in self._seen for name in names):
            return None
        prepared = self._prepared[key]
        products = [
            self._products(name, seen, prepared, gradients)
            for name in names
            for seen, gradients in zip(self._seen[name], self._weight_gradients(name, prepared), strict=True)
        ]
        return torch.stack(products).sum(dim=0).cpu()

    def _products(self, name: str, seen: _SeenCall, prepared: Prepared, gradients: Tensor | None) -> Tensor:
        if gradients is not None and prepared.weight is not None:
            return inner_products(gradients, prepared.weight - self.watched[name].get_parameter("weight"))
        with prepared.active():
            return seen.inner_products(self._rerun(name, seen.call) - seen.call.output)

    def _weight_gradients(self, name: str, prepared: Prepared) -> list[Tensor | None]:
        """Return, for each call of a module, the weight's gradients; kept until another module is asked for."""
        if prepared.weight is None:
            return [None] * len(self._seen[name])
        if self._latest is None or self._latest[0] != name:
            module, levels = self.watched[name], self._num_levels
            found = [weight_gradients(module, s.call, s.order, s.gradients, levels) for s in self._seen[name]]
            self._latest = name, found
        return self._latest[1]

    def _rerun(self, name: str, call: LayerCall) -> Tensor:
        output = next(tensors_in(self.watched[name](*call.args, **call.kwargs)))
        for follower in call.followers:
            output = follower(output)
        return output


class ChannelResponses:
    """Takes channels away at the inputs of the layers that read them.

    The response at a reader is minus its answer to the removed channels; its inner product with the gradient at
    the reader's output equals the removed inputs times the gradient there, so one sum per channel serves every
    level, and the readers of a group add up.
    """

    at_inputs = True
    followers: Mapping[str, Sequence[Sequence[nn.Module]]] = {}

    def __init__(self, compressor: ChannelCompressor, model: nn.Module, trace: CallTrace) -> None:
        self._compressor = compressor
        self._removed: dict[Key, Mapping[str, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        names = {name for target in compressor.targets for name in compressor.readers(target)}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._single = _shapes(trace, names, of_inputs=True)

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

    @contextmanager
    def observing(self, calls: Calls, num_images: int, num_directions: int) -> Iterator[None]:
        """Sum input times gradient over positions, for every channel."""
        for name, found in calls.items():
            axes = _batch_axes(self._single[name], [call.args[0].shape for call in found], num_images)
            if axes is None or any(len(call.input_gradients) != num_directions for call in found):
                continue
            parts = [self._per_channel(name, call, axis, num_images) for call, axis in zip(found, axes, strict=True)]
            self._sums[name] = torch.stack(parts).sum(dim=0).cpu()  # (N, directions, C)
        yield
        self._sums = {}

    def pulls(self, key: Key) -> Tensor | None:
        """Return minus the sum over removed channels of input times gradient, for each direction."""
        removed = self._removed[key]
        if not removed or not all(name in self._sums for name in removed):
            return None
        lost = [self._sums[name][:, :, channels].sum(dim=2) for name, channels in removed.items()]
        return -torch.stack(lost).sum(dim=0)

    def _per_channel(self, name: str, call: LayerCall, batch: int, num_images: int) -> Tensor:
        data = call.args[0]
        convolves = isinstance(self.watched[name], nn.modules.conv._ConvNd)
        channels = 1 if convolves else data.dim() - 1
        order = (batch, *(axis for axis in range(data.dim()) if axis not in (batch, channels)), channels)
        products = [(data * gradient).permute(order) for gradient in call.input_gradients]
        return torch.stack([p.reshape(num_images, -1, p.shape[-1]).sum(dim=1) for p in products], dim=1)


def responses_of(compressor: Compressor, model: nn.Module, trace: CallTrace) -> Responses:
    """Return the way to estimate what ``compressor`` does; ``trace`` shows the model's calls on one image."""
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, model, trace)
    return WeightResponses(cast(WeightCompressor, compressor), model, trace)


def batch_axis(single: Sequence[int], seen: Sequence[int], num_images: int) -> int | None:
    """Return the axis that grew with the number of images; None if that cannot be told.

    Args:
        single: shape for one image.
        seen: shape for ``num_images`` images.
        num_images: how many.
    """
    if num_images == 1 and tuple(single) == tuple(seen):
        return 0
    grown = [axis for axis, (one, many) in enumerate(zip(single, seen, strict=False)) if one != many]
    if len(single) != len(seen) or len(grown) != 1 or seen[grown[0]] != num_images * single[grown[0]]:
        return None
    return grown[0]


def _batch_axes(single: Sequence[Sequence[int]], seen: Sequence[Sequence[int]], num_images: int) -> list[int] | None:
    """Return the batch axis of each call; None if any cannot be told, or the calls are not those of one image."""
    if len(single) != len(seen):
        return None
    axes = [batch_axis(one, many, num_images) for one, many in zip(single, seen, strict=True)]
    return [axis for axis in axes if axis is not None] if None not in axes else None


def _shapes(trace: CallTrace, names: set[str], *, of_inputs: bool) -> dict[str, list[tuple[int, ...]]]:
    """Return the shape of each call's first input (or output) for one image, by module."""
    assert trace.batch_size == 1
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
    for call in trace.calls:
        if call.module in shapes:
            shapes[call.module].append(call.input_shape if of_inputs else call.output_shape)
    return shapes


def _rows(values: Tensor, order: tuple[int, ...], num_images: int) -> Tensor:
    return values.permute(order).reshape(num_images, -1)
