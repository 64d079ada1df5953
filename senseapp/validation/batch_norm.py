"""Repair of a BatchNorm: new running statistics, with which its output keeps the uncompressed network's moments.

With the input's mean mu and variance v in the compressed network, and m and s in the uncompressed one on the same
images, each channel's

    running_var  <- (running_var + eps) v / s - eps
    running_mean <- mu - (m - running_mean) sqrt(v / s)

give its output the mean and the variance that it has in the uncompressed network. Where nothing changed (mu = m and
v = s) this is the identity, whatever images it is done on; re-estimating the statistics from the images is not.

Ratios of channels are shrunk towards their common one, see :func:`~senseapp.validation.moments.shrunk_ratio`; means are
matched all the same.
"""

from __future__ import annotations

import torch
from timm.layers import FrozenBatchNormAct2d
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from senseapp.layers.compressible import BATCH_NORMS
from senseapp.validation.moments import Moments, moments_of, shrunk_ratio

_MOST_RATIO = 16.0
"""Of variances: a channel that changed more than this is noise, which more scaling would only raise."""
_FROZEN = (FrozenBatchNorm2d, FrozenBatchNormAct2d)


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return, by name, the modules of ``model`` that normalise by running statistics, frozen ones included."""
    return {name: module for name, module in model.named_modules() if _has_statistics(module)}


def _has_statistics(module: nn.Module) -> bool:
    if not isinstance(module, (*BATCH_NORMS, *_FROZEN)):
        return False
    return isinstance(module.running_mean, Tensor) and isinstance(module.running_var, Tensor)


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

    def moments(self, values: Tensor) -> Moments:
        """Return the moments of the input ``values``, (N, C) or (N, C, ...)."""
        return moments_of(values, 1)

    def match(self, goal: Moments, found: Moments, values: Tensor, images: int) -> Tensor:
        """Let the input ``values``, whose moments are ``found``, come out with the moments that ``goal`` gave."""
        old_mean, old_variance = (old.double() for old in self._old)
        ratio = shrunk_ratio(_ratio(found.variance, goal.variance, _MOST_RATIO), images)
        ratio = torch.maximum(ratio, self._eps / (old_variance + self._eps).clamp_min(self._eps))  # no variance below 0
        # Written as changes of the old values, so that no change at all leaves every bit as it is.
        variance = old_variance + (old_variance + self._eps) * (ratio - 1)
        mean = old_mean + (found.mean - goal.mean) + (goal.mean - old_mean) * (1 - ratio.sqrt())
        self._variance.copy_(torch.where(ratio == 1, old_variance, variance.clamp_min(0)))  # 0 but for rounding
        self._mean.copy_(mean)
        return values

    def undo(self) -> None:
        """Put the old statistics back."""
        self._mean.copy_(self._old[0])
        self._variance.copy_(self._old[1])

    def is_finite(self) -> bool:
        """Whether every statistic is a number."""
        return bool(self._mean.isfinite().all() and self._variance.isfinite().all())


def _ratio(found: Tensor, goal: Tensor, most: float) -> Tensor:
    """Return found / goal within 1/most to most; 1 where both are zero."""
    ratio = torch.where(goal > 0, found / goal.clamp_min(torch.finfo(goal.dtype).tiny), torch.full_like(goal, most))
    return torch.where(found == goal, 1.0, ratio).clamp(1 / most, most)
