"""Norms of a layer's input features over the calibration images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from senseapp.transforms.inputs import observe_inputs
from senseapp.transforms.layout import WeightLayout
from senseapp.transforms.weights import LayerWeight


class InputNorms:
    """L2 norm of each input feature of one layer, over images and positions; a fixed number of sums.

    Attributes:
        squared: sums of squares, float64 (S, I): one row per input, so 3 for attention (query, key, value) and 1
            elsewhere; None until something was seen.
    """

    def __init__(self, num_kernel_axes: int) -> None:
        self._num_kernel_axes = num_kernel_axes
        self.squared: Tensor | None = None

    def update(self, inputs: tuple[Tensor, ...]) -> None:
        """Add the inputs of one call, each (N, I, ...) before a convolution or (..., I) before a product."""
        rows = torch.stack([self._sum_of_squares(values) for values in inputs])  # (S, I)
        self.squared = rows if self.squared is None else self.squared + rows

    def _sum_of_squares(self, values: Tensor) -> Tensor:
        feature_axis = values.dim() - 1 - self._num_kernel_axes
        axes = [axis for axis in range(values.dim()) if axis != feature_axis]
        norms: Tensor = torch.linalg.vector_norm(values, dim=axes, dtype=torch.float32)
        return norms.cpu().double().square()

    def matched_to(self, layout: WeightLayout, num_outputs: int) -> Tensor:
        """Return the norms, float32 (G, O/G, I/G, 1, 1, 1), to multiply a split weight with.

        Args:
            layout: of the weight.
            num_outputs: O/G; attention's rows for query, key and value follow one another.

        Raises:
            ValueError: nothing was seen yet.
        """
        if self.squared is None:
            raise ValueError("no input was seen")
        num_inputs = len(self.squared)
        norms = self.squared.sqrt().float().view(num_inputs, layout.groups, -1).transpose(0, 1)  # (G, S, I/G)
        return norms.repeat_interleave(num_outputs // num_inputs, dim=1)[..., None, None, None]


def gather_input_norms(
    model: nn.Module, weights: Sequence[LayerWeight], batches: Sequence[Tensor]
) -> dict[str, InputNorms]:
    """Return the input norms by layer name, from one pass over ``batches``; layers never called are absent."""
    norms = {weight.profile.name: InputNorms(len(weight.profile.weight_shape) - 2) for weight in weights}
    observe_inputs(
        model, [(weight.module, _watcher(weight, norms[weight.profile.name])) for weight in weights], batches
    )
    return {name: found for name, found in norms.items() if found.squared is not None}


def _watcher(weight: LayerWeight, norms: InputNorms) -> Callable[[tuple[Tensor, ...]], None]:
    return lambda inputs: norms.update(inputs[weight.inputs_read])
