"""How far a compressed layer's output moves along a pull: by running the layer, or by leaving channels out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from senseapp.errors import MeasurementFailed
from senseapp.layers import CallTrace, tensors_in
from senseapp.sensitivity.folding import folded
from senseapp.sensitivity.quick.followers import followers_of
from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.sensitivity.quick.weight_gradients import inner_products, weight_gradients
from senseapp.transforms import Applied, ChannelCompressor, Compressor, Prepared, Target, WeightCompressor

__all__ = ["ChannelResponses", "Key", "Responses", "WeightResponses", "batch_axis", "responses_of"]

Key: TypeAlias = tuple[str, float]
# From so many values on, to lay gradients side by side takes longer than it spares.
_LONG = 2**16


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

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Take in all calls of the watched module ``name`` for a batch, with their gradients."""
        ...

    def collect(self) -> dict[Key, Tensor]:
        """Return the batch's inner products of all that the observed calls show, (N, directions), and forget them."""
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
        if rows.dtype is torch.bfloat16:  # four times as fast as the others, which are faster in float32
            return torch.stack([torch.linalg.vecdot(each, rows) for each in self.gradients], dim=1).float()
        if rows.shape[1] >= _LONG:
            return torch.stack([torch.stack([*map(torch.dot, each, rows)]) for each in self.gradients], dim=1)
        if self._stacked is None:
            self._stacked = torch.stack(self.gradients, dim=1)
        return torch.bmm(rows[:, None], self._stacked.transpose(1, 2))[:, 0]


class WeightResponses:
    """Runs the layer again with compressed weights (and inputs) on what it took in, and its followers on the answer.

    Where nothing bends the answer, :mod:`senseapp.sensitivity.quick.weight_gradients` spares a pass for each level.
    """

    at_inputs = False

    def __init__(
        self, compressor: WeightCompressor, model: nn.Module, trace: CallTrace, norms: Mapping[str, nn.BatchNorm2d]
    ) -> None:
        self._compressor = compressor
        self._norms = norms
        self._prepared: dict[Key, Prepared] = {}
        self._products: dict[Key, dict[str, Tensor]] = {}
        names = {name for target in compressor.targets for name in target.modules}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._modules = {target.layer: target.modules for target in compressor.targets}
        chains = {name: found for name, found in followers_of(trace, model, norms).items() if name in names}
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
        for target in targets:
            for level in levels:
                try:
                    self._prepared[target.layer, level] = self._compressor.prepare(target, level)
                except MeasurementFailed:
                    continue  # the exact measurement records the reason
        return {key: prepared.applied for key, prepared in self._prepared.items()}

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Compute the inner products of the module's changed output with each direction's gradient."""
        axes = self._axes(name, calls, num_images)
        if axes is None or any(len(call.gradients) != num_directions for call in calls):
            return
        seen = [_SeenCall.of(call, axis, num_images) for call, axis in zip(calls, axes, strict=True)]
        keys = [key for key in self._prepared if name in self._modules[key[0]]]
        products = [self._each(name, each, keys) for each in seen]
        for key, parts in zip(keys, zip(*products, strict=True), strict=True):
            self._products.setdefault(key, {})[name] = torch.stack(parts).sum(dim=0)

    def collect(self) -> dict[Key, Tensor]:
        """Return the inner products of each target whose modules were all seen."""
        found, self._products = self._products, {}
        return {
            key: torch.stack([parts[name] for name in self._modules[key[0]]]).sum(dim=0).cpu()
            for key, parts in found.items()
            if parts.keys() >= set(self._modules[key[0]])
        }

    def _axes(self, name: str, found: Sequence[LayerCall], num_images: int) -> list[int] | None:
        shapes, norm = self._single.get(name, []), self._norms.get(name)
        if len(shapes) != len(found) or (norm is not None and any(norm not in call.followers[:1] for call in found)):
            return None
        single = [own[len(call.followers)] for own, call in zip(shapes, found, strict=True)]
        return _batch_axes(single, [call.output.shape for call in found], num_images)

    def _each(self, name: str, seen: _SeenCall, keys: Sequence[Key]) -> list[Tensor]:
        """Return the inner products of one call for each of ``keys``, (N, directions)."""
        gradients = self._weight_gradients(name, seen, keys)
        before = seen.call.output
        if gradients is None and seen.call.output_overwritten:
            before = self._rerun(name, seen.call)
        products = []
        for prepared in (self._prepared[key] for key in keys):
            if gradients is not None and prepared.weight is not None:
                change = prepared.weight() - self.watched[name].get_parameter("weight")
                products.append(inner_products(gradients, change))
            else:
                with prepared.active():
                    products.append(seen.inner_products(self._rerun(name, seen.call) - before))
            prepared.release()
        return products

    def _weight_gradients(self, name: str, seen: _SeenCall, keys: Sequence[Key]) -> list[Tensor] | None:
        if any(self._prepared[key].weight is None for key in keys):
            return None
        norm = self._norms.get(name)
        return weight_gradients(self.watched[name], seen.call, seen.order, seen.gradients, len(keys), norm)

    def _rerun(self, name: str, call: LayerCall) -> Tensor:
        module, norm = self.watched[name], self._norms.get(name)
        with nullcontext() if norm is None else folded(module, norm):
            output = next(tensors_in(module(*call.args, **call.kwargs)))
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

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Sum input times gradient over positions, for every channel."""
        axes = _batch_axes(self._single[name], [call.args[0].shape for call in calls], num_images)
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
        convolves = isinstance(self.watched[name], nn.modules.conv._ConvNd)
        channels = 1 if convolves else data.dim() - 1
        order = (batch, *(axis for axis in range(data.dim()) if axis not in (batch, channels)), channels)
        products = [(data * gradient).permute(order) for gradient in call.input_gradients]
        return torch.stack([p.reshape(num_images, -1, p.shape[-1]).sum(dim=1) for p in products], dim=1)


def responses_of(
    compressor: Compressor, model: nn.Module, trace: CallTrace, norms: Mapping[str, nn.BatchNorm2d]
) -> Responses:
    """Return the way to estimate what ``compressor`` does.

    Args:
        compressor: of ``model``.
        model: the network.
        trace: shows its calls on one image.
        norms: by layer, what is folded into it whenever calls are recorded.
    """
    if isinstance(compressor, ChannelCompressor):
        return ChannelResponses(compressor, model, trace)
    return WeightResponses(cast(WeightCompressor, compressor), model, trace, norms)


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
