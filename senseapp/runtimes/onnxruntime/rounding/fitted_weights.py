"""Weights and biases of each product, fitted to the moments of its inputs on calibration images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from senseapp.compressions.quantization.grid import fake_quantize_input
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import SEPARATOR
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.integer_weights import integers_of
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, activation_grid, tensors_of
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST, MOST_OF_A_PAIR, rounded

_ROWS = (1024, 8192)  # least and most that second moments of a node are taken over; a few for each of their columns
BIAS_STEPS = 2.0**30
"""Of a bias in 32 bits: half of what they hold, so that a bias and what is added to it fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedProduct:
    """Weights of one node as an int8 file holds them.

    Attributes:
        product: the node as the float network has it.
        steps: the integers, as the weight lies.
        scale: by output channel, (O,).
        offsets: the bias (O,), which also takes up what rounding changes of the output's mean; None without one.
        float_offsets: the same where the input is not rounded.
    """

    product: WeightedNode
    steps: Tensor
    scale: Tensor
    offsets: Tensor | None
    float_offsets: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The weight in float, integers times scales."""
        shape = [1] * self.steps.dim()
        shape[self.product.channel_axis] = -1
        return self.steps * self.scale.view(shape)


def rounded_products(
    network: bytes,
    batches: Sequence[Tensor],
    products: Sequence[WeightedNode],
    inputs: Mapping[str, Range],
    *,
    integers: Mapping[str, IntegerWeight] | None = None,
    largest: int = LARGEST,
    any_order: bool = False,
    progress: Callable[[str], None],
) -> dict[str, RoundedProduct]:
    """Return by node the weights and biases that change its output least, given that inputs are rounded to ``inputs``.

    With ``any_order``, sums of products fit in 16 bits also where a runtime pairs weights otherwise than onnxruntime.
    A weight that is made of ``integers``, by node those of its layer, keeps them if they are small enough for this.
    The bias takes up the difference that rounded inputs and weights make to the mean of the output, so weights are
    fitted to the covariance of inputs where there is one (Nagel et al. 2019, "Data-free quantization", section 4.2).
    """
    wanted = [each for each in products if each.input in inputs]
    sums = {each.node: _Sums(each, inputs[each.input]) for each in wanted}
    generator = torch.Generator().manual_seed(0)
    images = sum(map(len, batches))
    for values in tensors_of(network, batches, sorted({each.input for each in wanted})):
        for each in wanted:
            sums[each.node].add(values[each.input], images, generator)
    found = {}
    for index, each in enumerate(wanted):
        progress(f"Rounding weights{SEPARATOR}{index} of {len(wanted)} layers")
        most = min(largest, MOST_OF_A_PAIR // 2) if any_order and each.order_varies else largest
        layer = (integers or {}).get(each.node)
        found[each.node] = sums[each.node].rounded(most, None if layer is None else integers_of(each, layer))
    return found


class _Sums:
    """Sums over rows of inputs of one node: their second moments, and their means before and after rounding."""

    def __init__(self, product: WeightedNode, ends: Range) -> None:
        self._product, self._ends = product, ends
        groups, _, width = product.matrix(product.values).shape
        self._second = torch.zeros(groups, width, width)
        self._first = torch.zeros(groups, width, dtype=torch.float64)
        self._first_rounded = torch.zeros_like(self._first)
        self._count = 0

    def add(self, inputs: Tensor, images: int, generator: torch.Generator) -> None:
        # second moments of fewer rows than columns are singular; this is well beyond that
        wanted = min(max(16 * self._second.shape[1], _ROWS[0]), _ROWS[1])
        rows = self._product.rows(inputs, math.ceil(wanted / images) * len(inputs), generator)
        seen = fake_quantize_input(rows, *self._ends, bits=INT8_BITS)
        self._second += seen.transpose(1, 2) @ seen
        self._first += rows.sum(1)
        self._first_rounded += seen.sum(1)
        self._count += rows.shape[1]

    def rounded(self, largest: int, own: IntegerWeight | None) -> RoundedProduct:
        product, offsets = self._product, self._product.offsets
        weight = product.matrix(product.values)
        second, mean, seen = (each / self._count for each in (self._second, self._first, self._first_rounded))
        if offsets is not None:
            second = second - (seen[:, :, None] * seen[:, None, :]).float()
        input_scale = float(activation_grid(*self._ends)[1])
        least = torch.zeros_like(weight[:, :, :1])
        if offsets is not None:
            least = least.maximum(offsets.abs().view_as(least) / (BIAS_STEPS * input_scale))
        steps, scale = rounded(
            weight,
            second,
            least_scale=least,
            largest=largest,
            paired=not product.depthwise,
            own=None if own is None else _rows(product, own),
        )
        float_offsets = offsets
        if offsets is not None:
            kept, integers = weight.double() @ mean[:, :, None], (steps * scale).double()
            offsets, float_offsets = (
                offsets + (kept - integers @ each[:, :, None]).float().reshape(-1) for each in (seen, mean)
            )
        return RoundedProduct(
            product=product,
            steps=product.tensor(steps),
            scale=scale.reshape(-1),
            offsets=offsets,
            float_offsets=float_offsets,
        )


def _rows(product: WeightedNode, weight: IntegerWeight) -> tuple[Tensor, Tensor]:
    """Return the integers of a node's weight (G, O/G, K), and their scales (G, O/G, 1)."""
    matrix = product.matrix(weight.values.float())
    return matrix, weight.scale.reshape(-1).expand(matrix.shape[0] * matrix.shape[1]).reshape(*matrix.shape[:2], 1)
