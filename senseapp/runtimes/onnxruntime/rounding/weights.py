"""Weights in int8 with the least change of a layer's output, without saturation on any processor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from senseapp.compressions import obs
from senseapp.records.deployment import INT8_BITS

LARGEST = int(torch.iinfo(torch.int8).max)
MOST_OF_A_PAIR = int(torch.iinfo(torch.int16).max) // int(torch.iinfo(torch.uint8).max)
"""What two neighbouring weights of one sign add up to at most: 255 · 128 fits in the 16 bits of ``VPMADDUBSW``."""
_SHARES = tuple(1 - step / 20 for step in range(8))  # of the scale under which nothing is clipped
_NARROW = 64  # columns, up to which a scale that happens to suit a row makes a difference
_FINE_SHARES = tuple(2.0 ** (step / 50) for step in range(-30, 31))
"""Tried beside :data:`_SHARES` for rows of few columns. On EfficientNet-Lite0, kernels of 3 × 3 have .5 times the
squared error so, of 5 × 5 .8 times, rows of 16 and 32 columns .7 and .8 times."""
_FEWER_BITS = tuple(2 ** (bits - 1) - 1 for bits in range(2, INT8_BITS))
"""The largest integers of 2 to 7 bits: weights that hold no more stay as they are."""
DAMPING = 0.5
"""Of the mean diagonal of H: that of few images, whose pixels are alike, suits others worse than the weights themselves
do. Beside 0.01, files of seven networks did .94 times the damage on other photographs, with activations in float .78
times (1.0: .90 and .90; 0.2: .97 and .88)."""
_LEAST_SCALE = torch.finfo(torch.float32).tiny ** 0.5  # of channels that hold next to nothing: it is divided by


def rounded(
    weight: Tensor,
    second: Tensor,
    *,
    least_scale: Tensor,
    largest: int = LARGEST,
    paired: bool = True,
    own: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return integers (G, O, K) and their scale for each row (G, O, 1), for ``weight`` (G, O, K) of G groups.

    Both make the squared error (w − q) H (w − q)ᵀ small. H is ``second`` (G, K, K), the second moment, or the
    covariance where a bias takes up the mean, of what the rows are multiplied with, with :data:`DAMPING` of its mean
    diagonal added to the diagonal. Of several scales the best is taken, then columns are rounded in turn
    (:func:`~senseapp.compressions.obs.in_turn`), and the scale is fitted to the integers. Rows of few columns, as those
    of depthwise kernels, have scales at which most of them happen to lie near integers: many are tried.

    Integers are at most ``largest``; with ``paired``, columns 2i and 2i + 1 of one sign add up to at most
    :data:`MOST_OF_A_PAIR`, in the order that the runtime multiplies in. Scales are at least ``least_scale``, (G, O, 1).
    ``own`` are the integers and the scale that the weight is made of, if it was rounded before; rows in which these are
    allowed keep them.

    On processors with AVX2 or AVX-512 but without VNNI, onnxruntime adds two products of 8 bits in 16, with
    saturation; its depthwise kernels do not.
    """
    moments, least_scale = obs.damped(second, least=DAMPING), least_scale.clamp_min(_LEAST_SCALE)
    highest = weight.abs().amax(2, keepdim=True)
    full = torch.maximum(highest / largest, _largest_pair(weight) / MOST_OF_A_PAIR) if paired else highest / largest
    wanted = weight.permute(2, 0, 1)
    allowed = _allowed(wanted, largest, paired)

    def in_turn(steps: Tensor, scale: Tensor) -> Tensor:
        columns = obs.in_turn(wanted, moments, steps.permute(2, 0, 1), scale[..., 0], allowed)
        return columns.permute(1, 2, 0).contiguous()

    steps, scale = torch.zeros_like(weight), torch.maximum(full, least_scale)
    least = torch.full_like(scale, torch.inf)
    narrow = weight.shape[2] <= _NARROW
    shares = (*_SHARES, *_FINE_SHARES) if narrow else _SHARES
    for candidate in (*(share * full for share in shares), *(highest / most for most in _FEWER_BITS)):
        tried = torch.maximum(candidate, least_scale)
        found = _nearest(weight / tried, largest, paired)
        found = in_turn(found, tried) if narrow else found
        error = obs.squared_error(weight - found * tried, moments)[..., None]
        better = error < least
        least, scale = torch.where(better, error, least), torch.where(better, tried, scale)
        steps = torch.where(better, found, steps)
    keeps = torch.zeros_like(scale, dtype=torch.bool)
    if own is not None:
        keeps = (_nearest(own[0], largest, paired) == own[0]).all(2, keepdim=True) & (own[1] >= least_scale)
        steps, scale = torch.where(keeps, own[0], steps), torch.where(keeps, own[1], scale)
    for _ in range(2):  # rounds of coordinate descent over the columns; each takes as long as the first
        steps = in_turn(steps, scale)
        fitted = obs.fitted_scale(wanted, moments, steps.permute(2, 0, 1), scale[..., 0])[..., None]
        scale = torch.where(keeps, scale, fitted.maximum(least_scale))
    return steps, scale


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


def _allowed(weight: Tensor, largest: int, paired: bool) -> obs.Nearest:
    """Return the projection onto integers that cannot saturate with their neighbour; a weight of 0 stays as it is."""

    def nearest(column: int, values: Tensor, steps: Tensor) -> Tensor:
        low, high = torch.full_like(values, -largest), torch.full_like(values, largest)
        if paired and (column ^ 1) < len(steps):
            beside = steps[column ^ 1]
            low = low.maximum(-MOST_OF_A_PAIR - beside.clamp_max(0))
            high = high.minimum(MOST_OF_A_PAIR - beside.clamp_min(0))
        return torch.where(weight[column] != 0, values.round().maximum(low).minimum(high), steps[column])

    return nearest
