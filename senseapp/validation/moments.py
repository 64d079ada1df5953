"""Mean and variance per channel over images and positions, in parts that add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PRIOR_IMAGES = 64
"""With so many images, a channel's own ratio counts as much as the common one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and variance of so many values per channel.

    Attributes:
        count: values per channel.
        mean: float64 (C,).
        variance: float64 (C,), with divisor ``count``.
    """

    count: int
    mean: Tensor
    variance: Tensor

    def kept(self, channels: Sequence[int]) -> Moments:
        """Return the moments of these channels."""
        index = torch.as_tensor(list(channels), dtype=torch.long, device=self.mean.device)
        return Moments(count=self.count, mean=self.mean[index], variance=self.variance[index])


def moments_of(values: Tensor, axis: int) -> Moments:
    """Return the moments of ``values``, float (...), for each entry of ``axis``."""
    channels = axis % values.dim()
    others = [other for other in range(values.dim()) if other != channels]
    variance, mean = torch.var_mean(values.detach().float(), others, correction=0)
    count = values.numel() // values.shape[channels]
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

    What few images say about a single channel does not hold on others: with n images a channel's own share of the
    logarithm is n / (n + 64).
    """
    own = images / (images + _PRIOR_IMAGES)
    logarithm = ratio.log()
    return torch.where(ratio == 1, 1.0, (logarithm.mean() + own * (logarithm - logarithm.mean())).exp())
