"""Weights in int8 that change a layer's output least, and that no processor's int8 arithmetic saturates on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 127
MOST_OF_A_PAIR = 128
"""What two neighbouring weights of one sign add up to at most: 255 · 128 fits in the 16 bits of ``VPMADDUBSW``."""
_DAMPING = 0.01  # of the mean diagonal of second moments
_SHARES = tuple(1 - step / 20 for step in range(8))  # of the scale under which nothing is clipped
_FEWER_BITS = (1, 3, 7, 15, 31, 63)  # the largest integers of 2 to 7 bits: weights that hold no more stay as they are
_ROUNDS = 2
_LEAST_SCALE = torch.finfo(torch.float32).tiny ** 0.5  # of channels that hold next to nothing: it is divided by


def rounded(
    weight: Tensor, second: Tensor, *, least_scale: Tensor, largest: int = LARGEST, paired: bool = True
) -> tuple[Tensor, Tensor]:
    """Return integers (G, O, K) and their scale for each row (G, O, 1), for ``weight`` (G, O, K) of G groups.

    Both make the squared error (w − q) H (w − q)ᵀ small, where H, ``second`` (G, K, K), is the second moment, or the
    covariance where a bias takes up the mean, of what the rows are multiplied with. Of several scales the best is
    taken, then columns are rounded in turn, each to what is best beside all others (Behdin et al. 2023, "QuantEase",
    eq. 9). Integers are at most ``largest``; with ``paired``, columns 2i and 2i + 1 of one sign add up to at most
    :data:`MOST_OF_A_PAIR`, in the order that the runtime multiplies in. Scales are at least ``least_scale``, (G, O, 1).

    On processors with AVX2 or AVX-512 but without VNNI, onnxruntime adds two products of 8 bits in 16, with
    saturation; its depthwise kernels do not.
    """
    moments, least_scale = _damped(second), least_scale.clamp_min(_LEAST_SCALE)
    highest = weight.abs().amax(2, keepdim=True)
    full = torch.maximum(highest / largest, _largest_pair(weight) / MOST_OF_A_PAIR) if paired else highest / largest
    steps, scale = torch.zeros_like(weight), torch.maximum(full, least_scale)
    least = torch.full_like(scale, torch.inf)
    for candidate in (*(share * full for share in _SHARES), *(highest / most for most in _FEWER_BITS)):
        tried = torch.maximum(candidate, least_scale)
        found = _nearest(weight / tried, largest, paired)
        error = squared_error(weight - found * tried, moments)
        better = error < least
        least, scale = torch.where(better, error, least), torch.where(better, tried, scale)
        steps = torch.where(better, found, steps)
    for _ in range(_ROUNDS):
        _round_in_turn(weight, moments, steps, scale, largest, paired)
    return steps, scale


def squared_error(difference: Tensor, second: Tensor) -> Tensor:
    """Return the squared error (G, O, 1) of outputs that ``difference`` (G, O, K) of weights makes."""
    return ((difference @ second) * difference).sum(2, keepdim=True)


def _damped(second: Tensor) -> Tensor:
    diagonal = second.diagonal(dim1=1, dim2=2)
    added = (_DAMPING * diagonal.mean(1, keepdim=True)).clamp_min(_LEAST_SCALE)
    return second + torch.diag_embed(added.expand_as(diagonal))


def _pairs(weight: Tensor) -> Tensor:
    """Return ``weight`` as (G, O, pairs, 2); a column without a neighbour has 0 beside it."""
    even = functional.pad(weight, (0, weight.shape[2] % 2))
    return even.view(*even.shape[:2], -1, 2)


def _largest_pair(weight: Tensor) -> Tensor:
    pairs = _pairs(weight)
    return torch.maximum(pairs.clamp_min(0).sum(3), -pairs.clamp_max(0).sum(3)).amax(2, keepdim=True)


def _nearest(values: Tensor, largest: int, paired: bool) -> Tensor:
    """Return the integers nearest to ``values`` (G, O, K), of pairs that are too large both made smaller."""
    steps = values.round().clamp(-largest, largest)
    if not paired:
        return steps
    pairs = _pairs(steps)
    positive, negative = pairs.clamp_min(0), pairs.clamp_max(0)
    for part, sign in ((positive, 1), (negative, -1)):
        excess = (sign * part.sum(3) - MOST_OF_A_PAIR).clamp_min(0)
        part -= sign * torch.stack([(excess / 2).ceil(), (excess / 2).floor()], dim=3)
    return (positive + negative).flatten(2)[:, :, : values.shape[2]]


def _round_in_turn(weight: Tensor, second: Tensor, steps: Tensor, scale: Tensor, largest: int, paired: bool) -> None:
    """Change ``steps``, column by column, to what is best for all others as they are; never worse."""
    slope = (weight - steps * scale) @ second  # half the negative gradient, (G, O, K)
    width = weight.shape[2]
    for column in range(width):
        row = second[:, column, None, :]  # (G, 1, K)
        best = steps[:, :, column] + slope[:, :, column] / (row[:, :, column] * scale[:, :, 0])
        low, high = -float(largest), torch.full_like(best, largest)
        floor = torch.full_like(best, low)
        if paired and (column ^ 1) < width:
            beside = steps[:, :, column ^ 1]
            high = high.minimum(MOST_OF_A_PAIR - beside.clamp_min(0))
            floor = floor.maximum(-MOST_OF_A_PAIR - beside.clamp_max(0))
        change = best.round().maximum(floor).minimum(high) - steps[:, :, column]
        change = change * (weight[:, :, column] != 0)
        steps[:, :, column] += change
        slope -= (change * scale[:, :, 0])[:, :, None] * row
