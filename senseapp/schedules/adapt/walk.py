"""A walk over a compressed network, layer by layer, that gives each the weights that make up best for what it lost.

The compressed and the uncompressed network advance side by side over the same images and stop before each layer. What
arrives there in the compressed one has been through adapted layers only. A layer's new weights do the least squared
error at some positions of these images, see :mod:`senseapp.schedules.adapt.obs`; they stay on the grid, or keep as many
zeros in the same pattern, as the schedule says. In between, the statistics of BatchNorms and the means that biases set
are matched to the uncompressed network's. Each image passes through each network once, however many layers there are.

Sources: Frantar and Alistarh 2022 and 2023, see there; for aiming at the uncompressed network's outputs, Li et al.
2025, "GPTAQ", eq. 5, here as a change of the weights beforehand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from senseapp.compressions.base import Freedom, LayerWeight, find_weights
from senseapp.compressions.quantization.activations import watched
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.wording import plural
from senseapp.engine.context import MeasurementContext
from senseapp.engine.prefix import Prefix, prefix_bytes_per_image
from senseapp.engine.replay import Replay, ReplayMismatch
from senseapp.layers.trace import CallTrace
from senseapp.schedules.adapt import obs
from senseapp.schedules.adapt.product import LayerProduct
from senseapp.schedules.apply import AppliedModel
from senseapp.schedules.repair_sites import NormSite, batch_norms, pooled

_MOST_IMAGES = 128
_PREFIX_BYTES = 2 * 2**30  # of what both networks keep
_ROWS_PER_INPUT = 32  # of a layer: what its weights are fitted to
_ROWS = (512, 8192)
_RIDGE = 0.1  # of the mean diagonal; see _aimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How a walk finds new weights.

    Attributes:
        title: of the step that this is, as a person reads it.
        aimed: fit the weights to the uncompressed network's outputs rather than to what its weights make of the
            inputs that are left; not those of grouped convolutions, which have too few inputs to tell.
    """

    title: str
    aimed: bool = False


UPDATES = (
    Update(title="Weights updated, statistics matched"),
    Update(title="Weights updated towards the original's outputs, statistics matched", aimed=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer to adapt: where it starts, and what its weights may be.

    Attributes:
        plain: its weight as compression leaves it.
        dense: its weight before.
        freedom: what its new weights may be.
    """

    name: str
    weight: LayerWeight
    product: LayerProduct
    position: int
    plain: Tensor
    dense: Tensor
    freedom: Freedom


class Adaptation:
    """Gives the compressed layers of ``applied`` new weights, and undoes it; a form of repair.

    Args:
        dense: the uncompressed network, watched.
        batches: images (N, C, H, W) to fit to.
        progress: is told each layer; may stop the work by raising, since the network is a copy.

    Attributes:
        layers: names of those that are adapted.
        left: why others are not, by name.
    """

    def __init__(
        self,
        dense: MeasurementContext,
        applied: AppliedModel,
        batches: Sequence[Tensor],
        update: Update,
        *,
        seed: int = 0,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.update = update
        self._applied, self._batches, self._progress, self._seed = applied, batches, progress, seed
        self._networks = dense, replace(dense, model=applied.model)
        self.left: dict[str, str] = {}
        self._layers = {layer.name: layer for layer in self._found(dense)}
        biases = {name: _bias_of(layer.weight.module) for name, layer in self._layers.items()}
        self._biases = {name: (bias, bias.detach().clone()) for name, bias in biases.items() if bias is not None}
        self._norms = {name: NormSite(module) for name, module in batch_norms(applied.model).items()}

    @property
    def title(self) -> str:
        """What is done, as a person reads it."""
        return self.update.title

    @property
    def model(self) -> nn.Module:
        """The compressed network."""
        return self._applied.model

    @property
    def trace(self) -> CallTrace:
        """A watched pass of it."""
        return self._networks[1].trace

    def module(self, layer: str) -> nn.Module:
        """Return an adapted layer."""
        return self._layers[layer].weight.module

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that are adapted."""
        return tuple(self._layers)

    def _found(self, dense: MeasurementContext) -> Iterator[_Layer]:
        weights, self.left = find_weights(self._applied.model, self._applied.after.layers)
        calls: dict[str, list[int]] = defaultdict(list)
        for call in dense.trace.calls:
            calls[call.module].append(call.start)
        for name in (name for name in weights if name in self._applied.freedoms):
            weight = weights[name]
            owners = {start for module in weight.target.modules for start in calls.get(module, ())}
            reason = LayerProduct.obstacle(weight.module)
            if len(owners) != 1:
                reason = "its weight is not used by exactly one call of the layer"
            elif not weight.profile.keeps_zeros:
                reason = "its weight is standardised before use"
            if reason:
                self.left[name] = reason
                continue
            yield _Layer(
                name=name,
                weight=weight,
                product=LayerProduct(weight.module, tuple(weight.parameter.shape)),
                position=owners.pop(),
                plain=weight.parameter.detach().clone(),
                dense=dense.model.get_parameter(weight.profile.parameter).detach(),
                freedom=self._applied.freedoms[name],
            )

    def fit(self, batches: Sequence[int] | None = None) -> bool:
        """Adapt the network as it was at first on all or some batches; if not finite, undo and return False.

        So too if the model calls its layers in another order than when it was watched.
        """
        self.undo()
        try:
            with torch.no_grad():
                self._walk(self.streams(batches))
        except (ReplayMismatch, torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # documented, not exported
            self.undo()
            return False
        finite = all(bool(parameter.isfinite().all()) for parameter in self._applied.model.parameters())
        finite = finite and all(site.is_finite() for site in self._norms.values())
        if not finite:
            self.undo()
        return finite

    def streams(self, batches: Sequence[int] | None = None) -> tuple[Stream, Stream]:
        """Return the uncompressed network and this one, before all or some batches, as many as memory allows."""
        chosen = self._images(range(len(self._batches)) if batches is None else batches)
        original, changed = (Stream(network, chosen) for network in self._networks)
        return original, changed

    def undo(self) -> None:
        """Put the network back as it was."""
        for name, layer in self._layers.items():
            layer.weight.parameter.data.copy_(layer.plain)
            if name in self._biases:
                bias, old = self._biases[name]
                bias.data.copy_(old)
        for site in self._norms.values():
            site.undo()

    @contextmanager
    def fitted(self, batches: Sequence[int] | None = None) -> Iterator[bool]:
        """Adapt the network inside only; yields whether every value is finite, see :meth:`fit`."""
        try:
            yield self.fit(batches)
        finally:
            self.undo()

    def sentences(self, *, fitted: bool) -> tuple[str, ...]:
        """Return sentences on what was done, and on layers that were left as they were."""
        if not fitted:
            return ("Nothing was adapted: the new weights are not finite, or layers are called in varying order.",)
        left = {name: reason for name, reason in self.left.items() if name in self._applied.freedoms}
        count = sum(map(len, self._images(range(len(self._batches)))))
        notes = [f"{self.update.title}: {plural(len(self._layers), 'layer')}, fitted to {count} unlabelled images."]
        if left:
            name, reason = next(iter(left.items()))
            notes.append(f"{plural(len(left), 'compressed layer')} kept their weights (first: {name}: {reason}).")
        return tuple(notes)

    def _images(self, chosen: Sequence[int]) -> list[Tensor]:
        """Return the images of these batches, as many as memory allows, in micro-batches."""
        dense = self._networks[0]
        positions = [layer.position for layer in self._layers.values()]
        most = _PREFIX_BYTES // (2 * max(1, prefix_bytes_per_image(dense.trace, positions)))
        images = torch.cat([self._batches[index] for index in chosen])[: max(1, min(most, _MOST_IMAGES))]
        return [part.contiguous(memory_format=_order(part)) for part in torch.split(images, dense.layout.micro_batch)]

    def _walk(self, streams: Sequence[Stream]) -> None:
        starts = {call.module: call.start for call in reversed(self._networks[0].trace.calls)}
        stops = [(layer.position, name) for name, layer in self._layers.items()]
        stops += [(starts[name], name) for name in self._norms if name in starts]
        for number, (position, name) in enumerate(sorted(stops), start=1):
            self._progress(f"{self.update.title}: {name}, {number} of {len(stops)}")
            original, inputs = (stream.inputs(name, position) for stream in streams)
            if name in self._layers:
                self._adapt(self._layers[name], original, inputs)
            else:
                site = self._norms[name]
                goal, found = (pooled([site.moments(part) for part in given]) for given in (original, inputs))
                site.match(goal, found, inputs[0], sum(map(len, inputs)))

    def _adapt(self, layer: _Layer, original: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        aimed = self.update.aimed and layer.product.groups == 1
        draw = partial(layer_generator, self._seed, layer.name)
        sums = _Sums.of(layer.product, original, inputs, draw, cross=aimed)
        dense = layer.product.matrix(layer.dense).float()
        wanted, second = _aimed(dense, sums) if aimed else dense, obs.damped(sums.second)
        grid, kept = layer.freedom.grid, layer.freedom.kept
        found = wanted if kept is None else obs.zeroed(wanted, second, kept)
        if grid is not None:
            found = obs.rounded(found, second, grid, kept=None if kept is None else found != 0)
        parameter = layer.weight.parameter
        parameter.data.copy_(layer.product.weight(found, parameter))
        if layer.name in self._biases:
            bias, old = self._biases[layer.name]
            bias.data.copy_(old + _outputs(dense, sums.original) - _outputs(found, sums.mean))


def _outputs(matrix: Tensor, mean: Tensor) -> Tensor:
    """Return what ``matrix`` (G, O, K) makes of mean inputs (G, K): (G O,)."""
    return torch.einsum("gok,gk->go", matrix, mean).flatten()


def _aimed(dense: Tensor, sums: _Sums) -> Tensor:
    """Return weights (G, O, K) whose outputs come nearest to the uncompressed network's; ridge towards ``dense``."""
    ridged = obs.damped(sums.second, _RIDGE)
    change: Tensor = torch.linalg.solve(ridged, (dense @ sums.cross).transpose(1, 2))
    return dense + change.transpose(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Over rows x of inputs and x₀ of those in the uncompressed network, for each group.

    Attributes:
        second: Σ x xᵀ, (G, K, K).
        cross: Σ (x₀ − x) xᵀ, (G, K, K), where it was asked for.
        mean, original: of x and x₀, (G, K).
    """

    second: Tensor
    cross: Tensor
    mean: Tensor
    original: Tensor

    @classmethod
    def of(
        cls,
        product: LayerProduct,
        original: Sequence[Tensor],
        inputs: Sequence[Tensor],
        generator: Callable[[], torch.Generator],
        *,
        cross: bool,
    ) -> _Sums:
        """Add up over batches; ``generator`` returns a fresh one, which draws the positions."""
        width, images = math.prod(product.weight_shape[1:]), sum(map(len, inputs))
        positions = math.ceil(min(max(_ROWS_PER_INPUT * width, _ROWS[0]), _ROWS[1]) / images)
        draws = generator(), generator()
        shape = product.groups, width, width
        second, crossed = (inputs[0].new_zeros(shape) for _ in range(2))
        mean, before = (inputs[0].new_zeros(shape[:2]) for _ in range(2))
        count = 0
        for was, given in zip(original, inputs, strict=True):
            wanted, rows = product.rows(was, positions, draws[0]), product.rows(given, positions, draws[1])
            second.baddbmm_(rows.transpose(1, 2), rows)
            if cross:
                crossed.baddbmm_((wanted - rows).transpose(1, 2), rows)
            mean, before, count = mean + rows.sum(1), before + wanted.sum(1), count + rows.shape[1]
        return cls(second=second, cross=crossed, mean=mean / count, original=before / count)


class Stream:
    """One network on its way over batches of images, which it passes through once."""

    def __init__(self, context: MeasurementContext, batches: Sequence[Tensor]) -> None:
        self._context, self._replay = context, Replay(context.model, context.trace)
        self._prefixes = [Prefix(context.trace, batch) for batch in batches]

    def module(self, name: str) -> nn.Module:
        """Return a part of the network."""
        return self._context.model.get_submodule(name)

    def inputs(self, module: str, position: int) -> list[Tensor]:
        """Go on to the call of ``module`` that starts at ``position``; return what each batch brings to it."""
        found: list[Tensor] = []
        with watched(self.module(module), lambda given: found.append(given[0])):
            self._context.advance(self._replay, self._prefixes, position)
        return found


def _order(images: Tensor) -> torch.memory_format:
    last = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _bias_of(module: nn.Module) -> Tensor | None:
    name = "in_proj_bias" if isinstance(module, nn.MultiheadAttention) else "bias"
    return cast(Tensor | None, getattr(module, name, None))
