"""Repair of a layer: give its output the mean and the spread, per channel, that it has in the uncompressed network.

Source: Nagel et al., Data-free quantization through weight equalization and bias correction (2019), section 4.2,
with means (and spreads) measured on calibration images instead of derived.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from senseapp.layers.compressible import CONVOLUTIONS
from senseapp.validation.moments import Moments, moments_of, shrunk_ratio

_MOST_FACTOR = 2.0  # a channel that lost more of its spread than this is noise, which scaling would only raise
_DEAD = 1e-6  # of the old spread: less is rounding, not a signal
_LINEAR_IN_WEIGHT = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)


def correctable_layers(model: nn.Module) -> dict[str, bool]:
    """Return the layers that have a bias of their own, and whether their weight may be scaled too.

    A weight that several modules share cannot be; nor can one that is standardised before use, where it would have
    no effect.
    """
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            continue
        own = {key: value for key, value in module.named_parameters(recurse=False) if owners[id(value)] == 1}
        if "bias" in own:
            found[name] = "weight" in own and type(module).forward in _LINEAR_IN_WEIGHT
    return found


class LayerSite:
    """One layer, whose bias (and weight) take up what brings its output back.

    Zeros stay zeros, and weights that lie on a grid per output channel stay on one.

    Args:
        module: a convolution or linear layer with a bias.
        scale: correct the spread as well as the mean; only true where each channel may have a scale of its own.
    """

    reads_input = False

    def __init__(self, module: nn.Module, *, scale: bool) -> None:
        self._weight, self._bias, self._scale = module.get_parameter("weight"), module.get_parameter("bias"), scale
        self._axis = 1 if isinstance(module, CONVOLUTIONS) else -1
        self._old = (self._weight.detach().clone() if scale else None), self._bias.detach().clone()
        self._factor = torch.ones_like(self._bias, dtype=torch.float64)
        self._shift = torch.zeros_like(self._factor)

    @property
    def width(self) -> int:
        """The number of output channels."""
        return len(self._bias)

    def moments(self, values: Tensor) -> Moments:
        """Return the moments that the output ``values`` would have had without a correction."""
        found = moments_of(values, self._axis)
        return Moments(
            count=found.count,
            mean=(found.mean - self._shift) / self._factor,
            variance=found.variance / self._factor.square(),
        )

    def match(self, goal: Moments, found: Moments, values: Tensor, images: int) -> Tensor:
        """Correct the layer, fitted to so many ``images``, and return its output ``values`` as it is with that."""
        factor = torch.ones_like(self._factor)
        if self._scale:
            alive = (found.variance > _DEAD**2 * goal.variance) & (goal.variance > 0)
            tiny = torch.finfo(torch.float64).tiny
            ratio = torch.where(alive, goal.variance / found.variance.clamp_min(tiny), 1.0)
            ratio = ratio.clamp(1 / _MOST_FACTOR**2, _MOST_FACTOR**2)  # before the mean, which one outlier would move
            factor = shrunk_ratio(ratio, images).sqrt()
        shift = (goal.mean - found.mean) + found.mean * (1 - factor)
        again, offset = factor / self._factor, shift - self._shift * (factor / self._factor)
        self._factor, self._shift = factor, shift
        self._write()
        if bool(((again == 1) & (offset == 0)).all()):
            return values
        shape = [1] * values.dim()
        shape[self._axis] = -1
        return values * again.to(values.dtype).view(shape) + offset.to(values.dtype).view(shape)

    def undo(self) -> None:
        """Put the old weight and bias back."""
        self._factor, self._shift = torch.ones_like(self._factor), torch.zeros_like(self._shift)
        self._write()

    def is_finite(self) -> bool:
        """Whether weight and bias are numbers."""
        return bool(self._weight.isfinite().all() and self._bias.isfinite().all())

    def _write(self) -> None:
        weight, bias = self._old
        self._bias.data.copy_(bias.double() * self._factor + self._shift)
        if weight is not None:
            self._weight.data.copy_(weight * self._factor.to(weight.dtype).view(-1, *[1] * (weight.dim() - 1)))
