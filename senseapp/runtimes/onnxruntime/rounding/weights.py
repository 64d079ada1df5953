"""Weights in int8 and biases of each product that change its output least, without saturation on any processor."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from senseapp.compressions import obs
from senseapp.compressions.quantization.grid import IntegerWeight, fake_quantize_input
from senseapp.core.steps import SEPARATOR
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.integer_weights import integers_of
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, TensorReader, activation_grid, tensors_of

LARGEST = int(torch.iinfo(torch.int8).max)
MOST_OF_A_PAIR = int(torch.iinfo(torch.int16).max) // int(torch.iinfo(torch.uint8).max)
"""What two neighbouring weights of one sign add up to at most: 255 · 128 fits in the 16 bits of ``VPMADDUBSW``."""
BIAS_STEPS = 2.0**30
"""Of a bias in 32 bits: half of what they hold, so that a bias and what is added to it fit."""
_ROWS = (1024, 8192)  # least and most that second moments of a node are taken over; a few for each of their columns
_SHARES = tuple(1 - step / 20 for step in range(8))  # of the scale under which nothing is clipped
_NARROW = 64  # columns, up to which a scale that happens to suit a row makes a difference
_FINE_SHARES = tuple(2.0 ** (step / 50) for step in range(-30, 31))
"""Tried beside :data:`_SHARES` for rows of few columns. On EfficientNet-Lite0, kernels of 3 × 3 have .5 times the
squared error so, of 5 × 5 .8 times, rows of 16 and 32 columns .7 and .8 times."""
_AT_ONCE = 32  # scales of these rows that are tried together: each step is small
_FEWER_BITS = tuple(2 ** (bits - 1) - 1 for bits in range(2, INT8_BITS))
"""The largest integers of 2 to 7 bits: weights that hold no more stay as they are."""
DAMPING = 0.5
"""Of the mean diagonal of H: that of few images, whose pixels are alike, suits others worse than the weights themselves
do. Beside 0.01, files of seven networks did .94 times the damage on other photographs, with activations in float .78
times (1.0: .90 and .90; 0.2: .97 and .88)."""
_LEAST_SCALE = torch.finfo(torch.float32).tiny ** 0.5  # of channels that hold next to nothing: it is divided by

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedProduct:
    """Weights of one node as an int8 file holds them.

    Attributes:
        integers: int8, as the weight lies.
        scale, axis: of all integers, or of each index of the axis of output channels; None where one scale must do.
        bias: in float (O,), which also takes up what rounding changes of the output's mean; None without one.
        float_bias: the same where the input is not rounded; None where it stays as it was.
    """

    integers: Array
    scale: Array
    axis: int | None
    bias: Array | None = None
    float_bias: Array | None = None

    @property
    def spread(self) -> Array:
        """The scales in a shape that broadcasts."""
        return along(self.scale, self.axis or 0, self.integers.ndim)


def along(values: Array, axis: int, rank: int) -> Array:
    """Return one value for all, or one for each index of an axis, in a shape that broadcasts to ``rank`` axes."""
    return values.reshape(() if values.size == 1 else [-1 if each == axis % rank else 1 for each in range(rank)])


def rounded_products(
    network: bytes,
    batches: Sequence[Tensor],
    products: Sequence[WeightedNode],
    inputs: Mapping[str, Range],
    *,
    integers: Mapping[str, IntegerWeight] | None = None,
    largest: int = LARGEST,
    any_order: bool = False,
    paired: bool = True,
    progress: Callable[[str], None],
    tensors: TensorReader = tensors_of,
) -> dict[str, RoundedProduct]:
    """Return by node the weights and biases that change its output least, given that inputs are rounded to ``inputs``.

    Sums of two products fit in 16 bits if ``paired``; with ``any_order`` also where a runtime pairs weights otherwise
    than onnxruntime. ``tensors`` runs ``network``, a file of any runtime that it reads.
    A weight that is made of ``integers``, by node those of its layer, keeps them if they are small enough for this.
    The bias takes up the difference that rounded inputs and weights make to the mean of the output, so weights are
    fitted to the covariance of inputs where there is one (Nagel et al. 2019, "Data-free quantization", section 4.2).
    """
    wanted = [each for each in products if each.input in inputs]
    read, found = tensors(network, batches, sorted({each.input for each in wanted})), dict[str, RoundedProduct]()
    moments = _moments(read, sum(map(len, batches)), wanted, inputs)
    for index, each in enumerate(wanted):
        progress(f"Rounding weights{SEPARATOR}{index} of {len(wanted)} layers")
        most = min(largest, MOST_OF_A_PAIR // 2) if any_order and each.order_varies else largest
        layer = (integers or {}).get(each.node)
        own = None if layer is None else integers_of(each, layer)
        beside = paired and not each.depthwise
        found[each.node] = _rounded_product(each, moments[each.node], inputs[each.input], most, own, paired=beside)
    return found


def _moments(
    read: Iterable[Mapping[str, Tensor]], images: int, products: Sequence[WeightedNode], inputs: Mapping[str, Range]
) -> dict[str, list[Tensor]]:
    """Return by node the second moments of its rounded inputs (G, K, K), and means (G, K) of these and the others."""
    generator, sums = torch.Generator().manual_seed(0), dict[str, list[Tensor]]()
    for values in read:
        for each in products:
            # second moments of fewer rows than columns are singular; this is well beyond that
            width = each.matrix(each.values).shape[2]
            count = math.ceil(min(max(16 * width, _ROWS[0]), _ROWS[1]) / images) * len(values[each.input])
            rows = each.rows(values[each.input], count, generator)
            seen = fake_quantize_input(rows, *inputs[each.input], bits=INT8_BITS)
            part = [
                seen.transpose(1, 2) @ seen,
                seen.sum(1).double(),
                rows.sum(1).double(),
                torch.tensor(rows.shape[1]),
            ]
            before = sums.get(each.node)
            sums[each.node] = (
                part if before is None else [one.add_(more) for one, more in zip(before, part, strict=True)]
            )
    return {node: [each / count for each in found] for node, (*found, count) in sums.items()}


def _rounded_product(
    product: WeightedNode,
    moments: Sequence[Tensor],
    ends: Range,
    largest: int,
    own: IntegerWeight | None,
    *,
    paired: bool,
) -> RoundedProduct:
    weight, offsets, (second, seen, mean) = product.matrix(product.values), product.offsets, moments
    least = torch.zeros_like(weight[:, :, :1])
    if offsets is not None:
        second = second - (seen[:, :, None] * seen[:, None, :]).float()
        least = offsets.abs().view_as(least) / (BIAS_STEPS * float(activation_grid(*ends)[1]))
    kept = None
    if own is not None:
        kept = product.matrix(own.values.float()), own.scale.reshape(-1).expand(least.numel()).view_as(least)
    steps, scale = rounded(weight, second, least_scale=least, largest=largest, paired=paired, own=kept)
    exact, integers = weight.double() @ mean[:, :, None], (steps * scale).double()
    biases = [
        None if offsets is None else (offsets + (exact - integers @ each[:, :, None]).reshape(-1)).float().numpy()
        for each in (seen, mean)
    ]
    return RoundedProduct(
        integers=product.tensor(steps).numpy().astype(np.int8),
        scale=scale.reshape(-1).numpy(),
        axis=product.channel_axis,
        bias=biases[0],
        float_bias=biases[1],
    )


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

    Both make the squared error (w − q) H (w − q)ᵀ small. H is ``second`` with :data:`DAMPING` of its mean diagonal
    added to the diagonal. The best of several scales is taken, columns are rounded in turn
    (:func:`~senseapp.compressions.obs.in_turn`), and the scale is fitted to the integers.

    ``second``, (G, K, K), is the second moment of the inputs, or their covariance where a bias takes up the mean;
    ``least_scale``, (G, O, 1), bounds scales. If ``paired``, columns 2i and 2i + 1 of one sign add up to at most
    :data:`MOST_OF_A_PAIR`, as onnxruntime adds two products of 8 bits in 16, with saturation, on processors without
    VNNI. Rows that may keep their ``own`` integers and scale do.
    """
    moments, least_scale = obs.damped(second, least=DAMPING), least_scale.clamp_min(_LEAST_SCALE)
    highest = weight.abs().amax(2, keepdim=True)
    pairs = MOST_OF_A_PAIR if paired else 2 * largest  # which no two weights exceed
    full = torch.maximum(highest / largest, _sums_of_pairs(weight).amax(2, keepdim=True) / pairs)
    narrow = weight.shape[2] <= _NARROW

    def in_turn(weight: Tensor, steps: Tensor, scale: Tensor) -> Tensor:
        allowed = _allowed(weight, largest, pairs)
        columns = obs.in_turn(weight.permute(2, 0, 1), moments, steps.permute(2, 0, 1), scale[..., 0], allowed)
        return columns.permute(1, 2, 0).contiguous()

    steps, scale = torch.zeros_like(weight), torch.maximum(full, least_scale)
    least = torch.full_like(scale, torch.inf)
    shares = (*_SHARES, *_FINE_SHARES) if narrow else _SHARES
    candidates = torch.stack([*(share * full for share in shares), *(highest / most for most in _FEWER_BITS)])
    for few in torch.split(candidates.maximum(least_scale), _AT_ONCE if narrow else 1):
        tried = few.transpose(0, 1).flatten(1, 2)  # (G, candidates · O, 1)
        copies = weight.repeat(1, len(few), 1)
        found = _nearest(copies / tried, largest, pairs)
        found = in_turn(copies, found, tried) if narrow else found
        errors = obs.squared_error(copies - found * tried, moments)
        for error, one, its in zip(*(each.chunk(len(few), dim=1) for each in (errors, found, tried)), strict=True):
            better = error[..., None] < least
            least, scale = torch.where(better, error[..., None], least), torch.where(better, its, scale)
            steps = torch.where(better, one, steps)
    wanted = weight.permute(2, 0, 1)
    keeps = torch.zeros_like(scale, dtype=torch.bool)
    if own is not None:
        keeps = (_nearest(own[0], largest, pairs) == own[0]).all(2, keepdim=True) & (own[1] >= least_scale)
        steps, scale = torch.where(keeps, own[0], steps), torch.where(keeps, own[1], scale)
    for _ in range(2):  # rounds of coordinate descent over the columns; each takes as long as the first
        steps = in_turn(weight, steps, scale)
        fitted = obs.fitted_scale(wanted, moments, steps.permute(2, 0, 1), scale[..., 0])[..., None]
        scale = torch.where(keeps, scale, fitted.maximum(least_scale))
    return steps, scale


def _sums_of_pairs(weight: Tensor) -> Tensor:
    """Return what columns 2i and 2i + 1 of ``weight`` (G, O, K) add up to, without sign, for both; 0 of two signs."""
    pairs = functional.pad(weight, (0, weight.shape[2] % 2)).reshape(*weight.shape[:2], -1, 2)
    sums: Tensor = pairs.sum(3).abs() * (pairs[..., 0].sign() == pairs[..., 1].sign())
    return sums.repeat_interleave(2, dim=2)[:, :, : weight.shape[2]]


def _nearest(values: Tensor, largest: int, pairs: int) -> Tensor:
    """Return the integers nearest to ``values`` (G, O, K), of pairs that are too large both made smaller."""
    steps = values.round().clamp(-largest, largest)
    return (steps * (pairs / _sums_of_pairs(steps).clamp_min(pairs))).trunc()


def _allowed(weight: Tensor, largest: int, pairs: int) -> obs.Nearest:
    """Return the projection onto integers that cannot saturate with their neighbour; a weight of 0 stays as it is."""

    def nearest(column: int, values: Tensor, steps: Tensor) -> Tensor:
        beside = steps[column ^ 1] if (column ^ 1) < len(steps) else torch.zeros_like(values)
        low, high = (-pairs - beside.clamp_max(0)).clamp_min(-largest), (pairs - beside.clamp_min(0)).clamp_max(largest)
        return torch.where(weight[:, :, column] != 0, values.round().maximum(low).minimum(high), steps[column])

    return nearest
