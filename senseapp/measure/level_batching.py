"""Several levels of a layer in one pass: the layer runs once per level, the rest of the network once for all levels.

Results equal those of separate passes but for the order of summation: see :func:`rounding_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compat.torch_internals import has_forward_hooks
from senseapp.compressions.base import Compressor, Prepared, Target, WeightCompressor
from senseapp.core.errors import MeasurementFailed
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import PlannedTarget, precision_context, representative_positions
from senseapp.measure.prefix import Prefix, RepeatedPrefix, prefix_bytes_per_image
from senseapp.measure.replay import Replay
from senseapp.networks.batch_axes import CallAxes, NotPerImage, batch_axes
from senseapp.networks.trace import map_tensors, tensors_in, wrapped_forwards


def _levels_split(
    model: nn.Module, names: frozenset[str], axes: Sequence[CallAxes], levels: Sequence[Prepared]
) -> AbstractContextManager[None]:
    """Run the modules of these names once per level, each on its share of the batch, in the order of ``levels``."""
    inside = False

    def wrap(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        calls = cycle([call for call in axes if call.module == name])  # a pass makes all of them, in this order

        def split(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return forward(*args, **kwargs)
            call, outputs = next(calls), []
            inside = True
            try:
                for level, share in zip(levels, _shares((args, kwargs), call.inputs, len(levels)), strict=True):
                    with level.active():  # may hook the module, which its forward alone would skip
                        outputs.append(module(*share[0], **share[1]))
            finally:
                inside = False
            return _joined(outputs, call.outputs)

        return split if name in names else forward

    return wrapped_forwards(model, wrap)


def _shares(arguments: Any, axes: Sequence[int | None], count: int) -> list[Any]:
    """Split the tensors of ``arguments`` along their batch axes into ``count`` shares.

    Repeated tensors stay one object in each share: attention has a faster path for them.
    """
    tensors = list(tensors_in(arguments))
    cut = {
        id(tensor): [tensor] * count if axis is None else tensor.chunk(count, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    }

    def share(place: int) -> Any:
        return map_tensors(arguments, lambda tensor: cut[id(tensor)][place])

    return [share(place) for place in range(count)]


def _joined(outputs: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """Concatenate the tensors of ``outputs``, which have the same structure, along their batch axes."""
    joined = (
        torch.cat(tensors, dim=axis)
        for tensors, axis in zip(zip(*map(tensors_in, outputs), strict=True), axes, strict=True)
        if axis is not None
    )
    return map_tensors(outputs[0], lambda _: next(joined))


_MEMORY_SHARE = 4  # a pass may use one part in n of the device's memory; kept outputs have an eighth
_SLACK = 2  # working memory of kernels besides outputs of modules, and fragmentation
_MOST_ELEMENTS = 2**31 - 1  # of one tensor: kernels with 32-bit indices fail above it
# Largest difference between separate and joint passes, relative to the largest number, on graphics cards: other batch
# sizes select other kernels, of reduced precision (TF32). Images that are mixed up differ by far more.
_ROUNDING = {"fp32": 0.01, "bf16": 0.04}
_UNIT_ROUNDOFF = 2.0**-24  # of float32
_SURE = 8.0  # standard deviations


def rounding_bound(context: MeasurementContext) -> float:
    """Return the largest relative difference between outputs of the same images in passes of different sizes.

    A processor may use another kernel for another number of images, which sums the same products in another order. K
    independent roundings of 2⁻²⁴ add up to at most λ·√K·2⁻²⁴, with λ = 8 almost surely; K is that of a path through all
    layers, and two orders differ by up to twice as much. Source: Higham and Mary 2019, "A new approach to probabilistic
    rounding error analysis", theorem 2.4, to first order.
    """
    most = _ROUNDING[context.layout.precision]
    if context.device.type != "cpu" or context.layout.precision != "fp32":
        return most
    products = sum(layer.num_params // layer.weight_shape[layer.channel_axis] for layer in context.profile.layers)
    return min(most, 2 * _SURE * math.sqrt(products) * _UNIT_ROUNDOFF)


def levels_that_fit(
    context: MeasurementContext,
    compressor: Compressor,
    planned: Sequence[PlannedTarget],
    *,
    num_levels: int,
    memory_bytes: int,
    asked: int | None = None,
) -> int:
    """Return the number of levels of one layer per pass.

    ``asked`` is reduced to the number that fits in memory; None selects as many as are faster on this device.
    """
    if asked is None:
        # On a CPU, a pass of the usual size is compute-bound already, and a larger one exceeds its caches
        # (docs/adr/0008). A small pass leaves most of a graphics card idle.
        asked = 1 if context.device.type == "cpu" else num_levels
    if context.replay_obstacle or not planned or not isinstance(compressor, WeightCompressor):
        return 1
    trace, images = context.trace, context.layout.micro_batch
    largest = max((call.output_bytes for call in trace.calls), default=1) // trace.batch_size
    held = prefix_bytes_per_image(trace, [item.position for item in planned])
    each_image = _SLACK * (held + 3 * largest)  # a layer's input, its output and the kernel's working memory
    each_level = images * each_image + 4 * max(layer.num_params for layer in context.profile.layers)
    fits = memory_bytes // _MEMORY_SHARE // max(1, each_level)
    indexable = _MOST_ELEMENTS // max(1, images * largest // 4)
    return max(1, min(asked, num_levels, fits, indexable))


@dataclass(frozen=True, slots=True)
class LevelBatch:
    """Runs several levels of one target in one pass; ``axes`` are the batch axes of each call's tensors."""

    context: MeasurementContext
    compressor: WeightCompressor
    axes: Sequence[CallAxes]

    @classmethod
    def checked(
        cls,
        context: MeasurementContext,
        compressor: WeightCompressor,
        planned: Sequence[PlannedTarget],
        levels: Sequence[float],
    ) -> LevelBatch | str:
        """Check whether the model can be run so; if not, return why.

        A pass over two levels is compared with a pass over each, at the first and the last target of each kind. The
        output of one level must not depend on the other level in any bit, and must equal that of a separate pass up to
        rounding (:func:`rounding_bound`). The first target is also tested with as many images and levels as a full pass
        has.
        """
        try:
            with torch.inference_mode(), precision_context(context.layout.precision, context.device):
                axes = batch_axes(context.model, context.batches(0, 1)[0])
        except NotPerImage as reason:
            return str(reason)
        if [call.module for call in axes] != [call.module for call in context.trace.calls]:
            return "the number of images decides which modules are called"
        if axes[0].outputs != (0,):
            return "the output has no row for each image"
        level_batch = cls(context, compressor, axes)
        return level_batch._fault(planned, levels) or level_batch

    def obstacle(self, target: Target) -> str:
        """Return why ``target`` can only be measured level by level; empty if it can be batched."""
        names = frozenset(target.modules)
        if self.context.trace.read_outside(names):
            return "its weight is read outside of its own call"
        modules = [self.context.model.get_submodule(name) for name in names]
        if any(has_forward_hooks(module) for module in modules):
            return "it has hooks of its own"
        calls = [call for call in self.axes if call.module in names]
        if any(None in call.outputs or set(call.inputs) <= {None} for call in calls):
            return "what it returns is the same for all images"
        return ""

    def exceptions(self, planned: Sequence[PlannedTarget]) -> list[str]:
        """Return a sentence on the targets that have an obstacle; empty if none has."""
        obstacles = {item.target.layer: reason for item in planned if (reason := self.obstacle(item.target))}
        if not obstacles:
            return []
        first, reason = next(iter(obstacles.items()))
        others = f" and {len(obstacles) - 1} more" if len(obstacles) > 1 else ""
        return [f"The levels of {first}{others} were measured one at a time ({reason})."]

    def outputs(self, prefixes: Sequence[Prefix], target: Target, levels: Sequence[Prepared]) -> list[Tensor]:
        """Return the output at each level for the images of ``prefixes``, which are at ``target``, float32 (n, ...)."""
        repeated = [RepeatedPrefix(prefix, len(levels), self.axes) for prefix in prefixes]
        with _levels_split(self.context.model, frozenset(target.modules), self.axes, levels):
            rows = self.context.resume(self._replay(), repeated)  # of each prefix, level by level
        assert isinstance(rows, Tensor)  # its axes are those of one tensor
        parts = torch.split(rows, [prefix.num_images for prefix in prefixes for _ in levels])
        return [torch.cat(parts[place :: len(levels)]) for place in range(len(levels))]

    def _replay(self) -> Replay:
        return Replay(self.context.model, self.context.trace)

    def _fault(self, planned: Sequence[PlannedTarget], levels: Sequence[float]) -> str:
        representative = set(representative_positions(planned))
        chosen = [item for item in planned if item.position in representative and not self.obstacle(item.target)]
        few = [Prefix(self.context.trace, batch) for batch in self.context.batches(0, min(2, len(self.context.images)))]
        for item in chosen:
            if fault := self._fault_at(item, (min(levels), max(levels)), few):
                return fault
        usual = self.context.prefixes(0, min(self.context.layout.micro_batch, len(self.context.images)))
        return self._fault_at(chosen[0], levels, usual) if chosen else ""

    def _fault_at(self, item: PlannedTarget, levels: Sequence[float], prefixes: Sequence[Prefix]) -> str:
        target = item.target
        try:
            prepared = [self.compressor.prepare(target, level) for level in levels]
        except MeasurementFailed:  # no reference at these levels
            return ""
        self.context.advance(self._replay(), prefixes, item.position)
        mixed = self.outputs(prefixes, target, prepared)
        for place in (0, -1):
            like = self.outputs(prefixes, target, [prepared[place]] * len(prepared))
            if not like[place].equal(mixed[place]):
                return "the output for one image depends on the others in its pass"
        for found, one in zip(mixed, prepared, strict=True):
            with one.active():
                alone = self.context.resume(self._replay(), prefixes)
            assert isinstance(alone, Tensor)
            if (found - alone).abs().max() > rounding_bound(self.context) * alone.abs().max():
                return "the output for an image depends on how many are in its pass"
        return ""
