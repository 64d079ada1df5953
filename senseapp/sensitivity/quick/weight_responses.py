"""How far a layer's answer to compressed weights (and inputs) moves along a pull."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from senseapp.errors import MeasurementFailed
from senseapp.layers import CallTrace, tensors_in
from senseapp.sensitivity.folding import folded
from senseapp.sensitivity.quick.call_axes import batch_axes, rows, shapes_in
from senseapp.sensitivity.quick.followers import followers_of
from senseapp.sensitivity.quick.protocol import Key
from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.sensitivity.quick.weight_gradients import inner_products, weight_gradients
from senseapp.transforms import Applied, Prepared, Target, WeightCompressor

__all__ = ["WeightResponses"]

# From so many values on, to lay gradients side by side takes a processor longer than it spares.
_LONG = 2**16


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
        self._keys: dict[str, list[Key]] = {}  # by module
        self._products: dict[Key, dict[str, Tensor]] = {}
        names = {name for target in compressor.targets for name in target.modules}
        self.watched = {name: model.get_submodule(name) for name in names}
        self._modules = {target.layer: target.modules for target in compressor.targets}
        chains = {name: found for name, found in followers_of(trace, model, norms).items() if name in names}
        self.followers: Mapping[str, Sequence[Sequence[nn.Module]]] = {
            name: [[link.module for link in chain] for chain in found] for name, found in chains.items()
        }
        own = shapes_in(trace, names, of_inputs=False)
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
                for name in target.modules:
                    self._keys.setdefault(name, []).append((target.layer, level))
        return {key: prepared.applied for key, prepared in self._prepared.items()}

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Compute the inner products of the module's changed output with each direction's gradient."""
        axes = self._axes(name, calls, num_images)
        if axes is None or any(len(call.gradients) != num_directions for call in calls):
            return
        seen = [_SeenCall.of(call, axis, num_images) for call, axis in zip(calls, axes, strict=True)]
        keys = self._keys.get(name, [])
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
        return batch_axes(single, [call.output.shape for call in found], num_images)

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
        gradients = [rows(gradient, order, num_images) for gradient in call.gradients]
        call.gradients.clear()
        return cls(call, order, gradients)

    def inner_products(self, response: Tensor) -> Tensor:
        """Return the inner product of each image's response with each gradient, (N, directions)."""
        moved = rows(response, self.order, len(self.gradients[0])).to(self.gradients[0].dtype)
        if moved.dtype is torch.bfloat16:  # four times as fast as the others, which are faster in float32
            return torch.stack([torch.linalg.vecdot(each, moved) for each in self.gradients], dim=1).float()
        if moved.shape[1] >= _LONG and moved.device.type == "cpu":
            return torch.stack([torch.stack([*map(torch.dot, each, moved)]) for each in self.gradients], dim=1)
        if self._stacked is None:
            self._stacked = torch.stack(self.gradients, dim=1)
        return torch.bmm(moved[:, None], self._stacked.transpose(1, 2))[:, 0]
