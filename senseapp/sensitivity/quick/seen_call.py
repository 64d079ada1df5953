"""Inner products of what a layer answers to its compression with the gradients at its output, image by image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.sensitivity.quick.call_axes import rows
from senseapp.sensitivity.quick.recorder import LayerCall

# From so many values on, to lay gradients side by side takes a processor longer than it spares.
_LONG = 2**16


@dataclass(slots=True)
class SeenCall:
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
