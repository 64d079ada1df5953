"""What the scan asks of each kind of compression.

Inner products of what a layer answers to its compression with the gradients at its output, image by image.
Which axis of a recorded call's tensors counts images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from senseapp.compressions.base import Applied, Target
from senseapp.engine.quick.recorder import LayerCall
from senseapp.layers.trace import CallTrace

Key: TypeAlias = tuple[str, float]
"""The layer of a target, and a level."""


class Responses(Protocol):
    """Inner products of the output's change with the pull, for one kind of compression.

    Attributes:
        watched: modules to record, by name.
        at_inputs: whether gradients are wanted at the modules' inputs rather than their outputs.
        downstream: modules to record after each call of a watched one, by its name.
    """

    watched: dict[str, nn.Module]
    at_inputs: bool
    downstream: Mapping[str, Sequence[Sequence[nn.Module]]]

    def prepare(self, targets: Sequence[Target], levels: Sequence[float]) -> dict[Key, Applied]:
        """Make ready every target and level that can be estimated, and say what each would truly do."""
        ...

    def observe(self, name: str, calls: Sequence[LayerCall], num_images: int, num_directions: int) -> None:
        """Take in all calls of the watched module ``name`` for a batch, with their gradients."""
        ...

    def collect(self) -> dict[Key, Tensor]:
        """Return the batch's inner products of all that the observed calls show, (N, directions), and forget them."""
        ...


def batch_axis(single: Sequence[int], seen: Sequence[int], num_images: int) -> int | None:
    """Return the axis that grew with the number of images; None if that cannot be told."""
    if num_images == 1 and tuple(single) == tuple(seen):
        return 0
    grown = [axis for axis, (one, many) in enumerate(zip(single, seen, strict=False)) if one != many]
    if len(single) != len(seen) or len(grown) != 1 or seen[grown[0]] != num_images * single[grown[0]]:
        return None
    return grown[0]


def batch_axes(single: Sequence[Sequence[int]], seen: Sequence[Sequence[int]], num_images: int) -> list[int] | None:
    """Return the batch axis of each call; None if any cannot be told, or the calls are not those of one image."""
    if len(single) != len(seen):
        return None
    axes = [batch_axis(one, many, num_images) for one, many in zip(single, seen, strict=True)]
    return [axis for axis in axes if axis is not None] if None not in axes else None


def shapes_in(trace: CallTrace, names: set[str], *, of_inputs: bool) -> dict[str, list[tuple[int, ...]]]:
    """Return the shape of each call's first input (or output) for one image, by module."""
    assert trace.batch_size == 1
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
    for call in trace.calls:
        if call.module in shapes:
            shapes[call.module].append(call.input_shape if of_inputs else call.output_shape)
    return shapes


def rows(values: Tensor, order: tuple[int, ...], num_images: int) -> Tensor:
    """Return ``values``, whose axes are put in this order, as one row for each image."""
    return values.permute(order).reshape(num_images, -1)


# From so many values on, to lay gradients side by side takes a processor longer than it spares.
_LONG = 2**16


@dataclass(slots=True)
class SeenCall:
    """A call with its gradients as rows for inner products.

    Attributes:
        order: axes of the output, the batch first, then as they lie in memory.
        gradients: (N, values) for each direction.
    """

    call: LayerCall
    order: tuple[int, ...]
    gradients: list[Tensor]
    _stacked: Tensor | None = None

    @classmethod
    def of(cls, call: LayerCall, batch: int, num_images: int) -> SeenCall:
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
