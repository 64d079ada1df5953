"""Per-image inner products of layers' responses to compression with the gradients at their outputs.

A layer in the head of one feature map of a detector moves the boxes of that map alone. An inner product sums over all
boxes, so that it cannot tell this from small moves of every box. But the gradient of the boxes of another map is
exactly zero at such a layer: one image and a backward pass for each part of the output show what a layer reaches.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import torch
from torch import Tensor, nn

from senseapp.compressions.base import Applied, ChannelCompressor, Prepared, Target, WeightCompressor
from senseapp.core.errors import MeasurementFailed
from senseapp.measure.accumulation import Key
from senseapp.measure.plan import precision_context
from senseapp.measure.quick.recorder import Calls, LayerCall, Recorder, activations_after
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.profile import CONVOLUTIONS
from senseapp.networks.trace import CallTrace


class Responses(ABC):
    """Inner products of the output's change with the gradients, for one kind of compression.

    ``watched`` modules are recorded (at their inputs if ``at_inputs``).
    """

    at_inputs: ClassVar[bool]

    def __init__(self, names: Iterable[str], model: nn.Module, trace: CallTrace) -> None:
        assert trace.batch_size == 1
        self.watched = {name: model.get_submodule(name) for name in names}
        self.after = {} if self.at_inputs else activations_after(trace, model, self.watched)
        self._single: dict[str, list[tuple[int, ...]]] = {name: [] for name in self.watched}  # shapes for one image
        for call in trace.calls:
            if call.module in self.watched:
                self._single[call.module].append(call.input_shape if self.at_inputs else call.output_shape)

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Prepare every target and level that can be estimated; return what would be applied for each."""
        applied: dict[Key, Applied] = {}
        for target in targets:
            for level in levels:
                with suppress(MeasurementFailed):  # the exact measurement records the reason
                    applied[target.layer, level] = self._prepare(target, level)
        return applied

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Add all calls of the watched module ``name`` for a batch, with their gradients."""
        shapes = [(call.args[0] if self.at_inputs else call.output).shape for call in calls]
        axes = batch_axes(self._single[name], shapes, num_images)
        if axes is not None and all(len(call.gradients) == num_directions for call in calls):
            self._add(name, list(zip(calls, axes, strict=True)), num_images)

    @abstractmethod
    def collect(self) -> dict[Key, Tensor]:
        """Return the batch's inner products of all keys with observed calls, (N, directions), and reset."""

    @abstractmethod
    def _prepare(self, target: Target, level: float) -> Applied: ...

    @abstractmethod
    def _add(self, name: str, calls: Sequence[tuple[LayerCall, int]], num_images: int) -> None:
        """Add calls with the axis along which each counts images."""


def batch_axis(single: Sequence[int], seen: Sequence[int], num_images: int) -> int | None:
    """Return the axis that grew with the number of images; None if it is ambiguous."""
    if num_images == 1 and tuple(single) == tuple(seen):
        return 0
    grown = [axis for axis, (one, many) in enumerate(zip(single, seen, strict=False)) if one != many]
    if len(single) != len(seen) or len(grown) != 1 or seen[grown[0]] != num_images * single[grown[0]]:
        return None
    return grown[0]


def batch_axes(single: Sequence[Sequence[int]], seen: Sequence[Sequence[int]], num_images: int) -> list[int] | None:
    """Return the batch axis of each call; None if one is ambiguous, or if the number of calls differs."""
    if len(single) != len(seen):
        return None
    axes = [batch_axis(one, many, num_images) for one, many in zip(single, seen, strict=True)]
    return [axis for axis in axes if axis is not None] if None not in axes else None


def rows(values: Tensor, order: tuple[int, ...], num_images: int) -> Tensor:
    """Return ``values``, with axes permuted to ``order``, as one row per image."""
    return values.permute(order).reshape(num_images, -1)


def products_with(call: LayerCall, batch: int, num_images: int, changes: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield inner products with the gradients of a call, (N, directions), for each of ``changes`` of its output.

    The output counts images along the axis ``batch``. The call's gradients are released.
    """
    strides = call.output.stride()
    # In memory order, the changes need no copy, and gradients rarely one.
    order = (batch, *sorted((a for a in range(call.output.dim()) if a != batch), key=lambda a: -strides[a]))
    gradients = [rows(gradient, order, num_images) for gradient in call.gradients]
    call.gradients.clear()
    for change in changes:
        moved = rows(change, order, num_images).to(gradients[0].dtype)
        if moved.dtype is torch.bfloat16:  # four times as fast here; the others are faster in float32
            yield torch.stack([torch.linalg.vecdot(each, moved) for each in gradients], dim=1).float()
        else:
            yield torch.cat([torch.bmm(moved[:, None], each[:, :, None])[:, 0] for each in gradients], dim=1)


class ChannelResponses(Responses):
    """Removes channels at the inputs of the layers that read them.

    The response at a reader is minus its output for the removed channels; its inner product with the gradient at the
    reader's output equals the removed inputs times the gradient there. So one sum per channel serves every level, and
    the sums of a group's readers add up.
    """

    at_inputs = True

    def __init__(self, compressor: ChannelCompressor, model: nn.Module, trace: CallTrace) -> None:
        super().__init__({name for each in compressor.targets for name in compressor.readers(each)}, model, trace)
        self._compressor = compressor
        self._removed: dict[Key, Mapping[str, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}

    def _prepare(self, target: Target, level: float) -> Applied:
        applied, self._removed[target.layer, level] = self._compressor.removed_inputs(target, level)
        return applied

    def _add(self, name: str, calls: Sequence[tuple[LayerCall, int]], num_images: int) -> None:
        """Sum input times gradient over positions, for every channel."""
        parts = [self._per_channel(name, call, axis, num_images) for call, axis in calls]
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
        channels = 1 if isinstance(self.watched[name], CONVOLUTIONS) else data.dim() - 1
        order = (batch, *(axis for axis in range(data.dim()) if axis not in (batch, channels)), channels)
        products = [(data * gradient).permute(order) for gradient in call.gradients]
        return torch.stack([p.reshape(num_images, -1, p.shape[-1]).sum(dim=1) for p in products], dim=1)


class WeightResponses(Responses):
    """Reruns each layer, and an activation after it, with compressed weights (and inputs) on its recorded inputs."""

    at_inputs = False

    def __init__(self, compressor: WeightCompressor, model: nn.Module, trace: CallTrace) -> None:
        super().__init__({name for target in compressor.targets for name in target.modules}, model, trace)
        self._compressor = compressor
        self._prepared: dict[Key, Prepared] = {}
        self._keys: dict[str, list[Key]] = {}  # by module
        self._products: dict[Key, dict[str, Tensor]] = {}
        self._modules = {target.layer: target.modules for target in compressor.targets}

    def _prepare(self, target: Target, level: float) -> Applied:
        self._prepared[target.layer, level] = prepared = self._compressor.prepare(target, level)
        for name in target.modules:
            self._keys.setdefault(name, []).append((target.layer, level))
        return prepared.applied

    def _add(self, name: str, calls: Sequence[tuple[LayerCall, int]], num_images: int) -> None:
        """Compute the inner products of the module's changed output with each direction's gradient."""
        keys = self._keys.get(name, [])
        products = [products_with(call, axis, num_images, self._changes(name, call, keys)) for call, axis in calls]
        for key, *parts in zip(keys, *products, strict=True):
            self._products.setdefault(key, {})[name] = torch.stack(parts).sum(dim=0)

    def collect(self) -> dict[Key, Tensor]:
        """Return the inner products of each target whose modules were all observed."""
        found, self._products = self._products, {}
        return {
            key: torch.stack([parts[name] for name in self._modules[key[0]]]).sum(dim=0).cpu()
            for key, parts in found.items()
            if parts.keys() >= set(self._modules[key[0]])
        }

    def _changes(self, name: str, call: LayerCall, keys: Sequence[Key]) -> Iterator[Tensor]:
        """Yield how far each of ``keys`` changes the output of a call."""
        before = self._rerun(name, call) if call.output_overwritten else call.output
        for prepared in (self._prepared[key] for key in keys):
            with prepared.active():
                changed = self._rerun(name, call) - before
            yield changed

    def _rerun(self, name: str, call: LayerCall) -> Tensor:
        output = next(tensors_in(self.watched[name](*call.args, **call.kwargs)))
        for module in self.after.get(name, ()):
            output = module(output)
        return output


def inner_products(
    sweep: Sweep, responses: Responses, recorder: Recorder, output: Tensor, calls: Calls, vectors: Sequence[Tensor]
) -> dict[Key, Tensor]:
    """Return v·δz of each key with observed calls, (N, directions), for directions v and the change δz of the output.

    ``output`` is that of the N images of ``calls``, with its graph; each of ``vectors`` is one direction, shaped like
    it.
    """

    def observe(name: str) -> None:
        with torch.inference_mode(), precision_context(sweep.context.layout.precision, sweep.context.device):
            responses.observe(name, calls[name], len(output), len(vectors))

    with precision_context("fp32", sweep.context.device):  # autocast is for forward passes only
        recorder.backward(output, [vector.to(output.device) for vector in vectors], calls, observe)
    return responses.collect()


def find_reach(sweep: Sweep, responses: Responses, recorder: Recorder) -> dict[str, Tensor]:
    """Return which places of the output of one image each layer changes, as far as the task tells parts apart.

    Places are bool, shaped as the output of one image; a layer whose reach is not known is absent.
    """
    task = sweep.context.task
    parts = task.output_parts(task.output(sweep.context.trace.output)[:1].detach().float().cpu())
    if not parts:
        return {}
    with precision_context(sweep.context.layout.precision, sweep.context.device):
        raw, calls = recorder.run(sweep.context.model, torch.cat(sweep.context.batches(0, 1)))
    found: dict[str, Tensor] = {}
    for (layer, _), products in inner_products(sweep, responses, recorder, task.output(raw), calls, parts).items():
        found[layer] = found.get(layer, torch.zeros(len(parts), dtype=torch.bool)) | (products[0] != 0)
    reached = {layer: tuple(each.tolist()) for layer, each in found.items()}
    masks = torch.stack([part != 0 for part in parts])
    places = {each: masks[list(each)].any(dim=0) for each in set(reached.values())}  # shared by layers that reach alike
    return {layer: places[each] for layer, each in reached.items()}
