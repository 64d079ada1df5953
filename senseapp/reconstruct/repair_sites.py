"""Sites of repair in a compressed network: BatchNorms and layers, whose outputs get back their mean and spread.

A norm gets new running statistics, a layer a new bias (and weight); moments of several batches add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from timm.layers import FrozenBatchNormAct2d
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from senseapp.compressions.base import WeightGrid
from senseapp.networks.profile import BATCH_NORMS, CONVOLUTIONS

_PRIOR_IMAGES = 64  # with this number of images, a channel's own ratio and the common one have equal weight
_MOST_FACTOR = 2.0  # a channel that lost more of its spread is noise, which scaling would amplify
_LINEAR_IN_WEIGHT = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and variance, with divisor ``count``, of ``count`` values per channel: float64 (C,)."""

    count: int
    mean: Tensor
    variance: Tensor

    def kept(self, channels: Sequence[int] | None) -> Moments:
        """Return the moments of these channels; None for all."""
        if channels is None:
            return self
        index = torch.as_tensor(list(channels), dtype=torch.long, device=self.mean.device)
        return Moments(count=self.count, mean=self.mean[index], variance=self.variance[index])


def moments_of(values: Tensor, axis: int) -> Moments:
    """Return the moments of ``values``, float (...), for each entry of ``axis``."""
    channels = axis % values.dim()
    others = [other for other in range(values.dim()) if other != channels]
    count, rows = values.numel() // values.shape[channels], values.detach().float().movedim(channels, -1)
    if rows.is_contiguous():  # in a third of the time
        flat = rows.reshape(count, -1)
        mean = flat.mean(0)
        variance = (flat - mean).square_().mean(0)
    else:
        variance, mean = torch.var_mean(values.detach().float(), others, correction=0)
    return Moments(count=count, mean=mean.double(), variance=variance.double())


def pooled(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all values of ``parts`` together; at least one."""
    if len(parts) == 1:
        return parts[0]
    count = sum(part.count for part in parts)
    mean = torch.stack([part.mean * (part.count / count) for part in parts]).sum(0)
    spread = [(part.variance + (part.mean - mean).square()) * (part.count / count) for part in parts]
    return Moments(count=count, mean=mean, variance=torch.stack(spread).sum(0))


def shrunk_ratio(ratio: Tensor, images: int) -> Tensor:
    """Shrink ratios of variances, (C,), towards their geometric mean; channels that did not change stay at 1.

    The ratio of a single channel on few images does not generalise: with n images a channel's own share of the
    logarithm is n / (n + 64).
    """
    own = images / (images + _PRIOR_IMAGES)
    logarithm = ratio.log()
    return torch.where(ratio == 1, 1.0, (logarithm.mean() + own * (logarithm - logarithm.mean())).exp())


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return, by name, the modules of ``model`` with running statistics, frozen norms included."""
    norms = (*BATCH_NORMS, FrozenBatchNorm2d, FrozenBatchNormAct2d)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, norms) and isinstance(module.running_mean, Tensor)
    }


class NormSite:
    """One BatchNorm, whose running statistics are matched to the moments of its input."""

    reads_input = True

    def __init__(self, module: nn.Module) -> None:
        self._mean, self._variance = module.get_buffer("running_mean"), module.get_buffer("running_var")
        self._old = self._mean.clone(), self._variance.clone()
        self._eps = float(getattr(module, "eps", 0.0))

    @property
    def width(self) -> int:
        """The number of channels."""
        return len(self._mean)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The running mean and variance, which a match changes."""
        return self._mean, self._variance

    def moments(self, values: Tensor) -> Moments:
        """Return the moments of the input ``values``, (N, C) or (N, C, ...)."""
        return moments_of(values, 1)

    def match(self, goal: Moments, found: Moments, values: Tensor, images: int) -> Tensor:
        """Change the statistics: input ``values`` with moments ``found`` then give the output moments of ``goal``."""
        old_mean, old_variance = (old.double() for old in self._old)
        # A channel whose variance changed by more than a factor of 16 is noise, which scaling would amplify.
        ratio = shrunk_ratio(_ratio(found.variance, goal.variance, 16.0), images)
        ratio = torch.maximum(ratio, self._eps / (old_variance + self._eps).clamp_min(self._eps))  # no variance below 0
        # Written as changes of the old values, so that without a change every bit stays.
        variance = old_variance + (old_variance + self._eps) * (ratio - 1)
        mean = old_mean + (found.mean - goal.mean) + (goal.mean - old_mean) * (1 - ratio.sqrt())
        self._variance.copy_(torch.where(ratio == 1, old_variance, variance.clamp_min(0)))  # 0 but for rounding
        self._mean.copy_(mean)
        return values

    def undo(self) -> None:
        """Restore the old statistics."""
        self._mean.copy_(self._old[0])
        self._variance.copy_(self._old[1])


def _ratio(found: Tensor, goal: Tensor, most: float) -> Tensor:
    """Return found / goal within 1/most to most; 1 where both are zero."""
    ratio = torch.where(goal > 0, found / goal.clamp_min(torch.finfo(goal.dtype).tiny), torch.full_like(goal, most))
    return torch.where(found == goal, 1.0, ratio).clamp(1 / most, most)


def correctable_layers(model: nn.Module) -> dict[str, bool]:
    """Return the layers that have their own bias, and whether their weight may be scaled too.

    A weight that several modules share may not; nor one that is standardised before use, where scaling would have no
    effect.
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
    """One layer, whose bias (and weight) restore the moments of its output.

    Zeros stay zeros, and weights on a grid per output channel stay on one. ``scale`` corrects the spread as well as the
    mean; it is valid only where each channel may have its own scale. ``grid`` is the grid of the weight and its scale,
    which changes with it.
    """

    reads_input = False

    def __init__(self, module: nn.Module, *, scale: bool, grid: tuple[WeightGrid, Tensor] | None = None) -> None:
        self._weight, self._bias, self._scale = module.get_parameter("weight"), module.get_parameter("bias"), scale
        self._grid = grid if scale else None
        self._axis = 1 if isinstance(module, CONVOLUTIONS) else -1
        self.start_from_now()

    def start_from_now(self) -> None:
        """Take the current weight and bias as those without a correction."""
        self._old = (self._weight.detach().clone() if self._scale else None), self._bias.detach().clone()
        if self._grid is not None:
            grid, scale = self._grid
            self._numbers, self._old_scale = grid.nearest(self._weight.detach() / scale), scale.clone()
        self._factor = torch.ones_like(self._bias, dtype=torch.float64)
        self._shift = torch.zeros_like(self._factor)

    @property
    def width(self) -> int:
        """The number of output channels."""
        return len(self._bias)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Weight, bias and scale of the grid, which a match changes."""
        return (self._weight, self._bias, *(() if self._grid is None else (self._grid[1],)))

    def moments(self, values: Tensor) -> Moments:
        """Return the moments that the output ``values`` would have had without a correction."""
        found = moments_of(values, self._axis)
        return Moments(
            count=found.count,
            mean=(found.mean - self._shift) / self._factor,
            variance=found.variance / self._factor.square(),
        )

    def match(self, goal: Moments, found: Moments, values: Tensor, images: int) -> Tensor:
        """Correct the layer from ``images`` images, and return its corrected output for ``values``."""
        factor = torch.ones_like(self._factor)
        if self._scale:
            # Less than a millionth of the old spread is rounding, not a signal.
            alive = (found.variance > 1e-12 * goal.variance) & (goal.variance > 0)
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
        """Restore the old weight and bias."""
        self._factor, self._shift = torch.ones_like(self._factor), torch.zeros_like(self._shift)
        self._write()

    def _write(self) -> None:
        weight, bias = self._old
        self._bias.data.copy_(bias.double() * self._factor + self._shift)
        if weight is None:
            return
        factor = self._factor.to(weight.dtype).view(-1, *[1] * (weight.dim() - 1))
        if self._grid is None:
            self._weight.data.copy_(weight * factor)
        else:
            _, scale = self._grid
            self._weight.data.copy_(self._numbers * scale.copy_(self._old_scale * factor))


Site = NormSite | LayerSite
