"""Ranges of tensors and moments of products' inputs in a float ONNX network, on calibration images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import onnx
import torch
from onnx import helper
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.activations import OBSERVERS
from senseapp.compressions.quantization.grid import extremes_of, fake_quantize_input
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import SEPARATOR, Trying
from senseapp.records.deployment import INT8_BITS
from senseapp.runtimes.onnxruntime.integer_weights import integers_of
from senseapp.runtimes.onnxruntime.partly_int8 import activation_grid
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST, MOST_OF_A_PAIR, rounded
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel

Range = tuple[float, float]
AT_ONCE = 8  # images whose tensors are held
_ROWS = (1024, 8192)  # least and most that second moments of a node are taken over; a few for each of their columns
_ROWS_OF_A_COLUMN = 16  # second moments of fewer rows than columns are singular; this is well beyond that
_VALUES = 4096  # of a tensor for each image, that ranges are taken from
_WIDER = tuple(1 + step / 1024 for step in range(17))  # upper ends of a range of pixels: up to 1.6 % farther
_PIXELS = 2**18  # of all images, that they are compared on
_BIAS_STEPS = 2.0**30  # half of what int32 holds, so that a bias and what is added to it fit


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


def ranges(
    network: bytes,
    batches: Sequence[Tensor],
    tensors: Sequence[str],
    observers: Sequence[ActivationObserver],
    *,
    trying: Trying = lambda _improvement: nullcontext(),
) -> dict[ActivationObserver, dict[str, Range]]:
    """Return the range of each of ``tensors`` by each of ``observers``, without those that are not finite.

    An observer that fails is left out where ``trying`` takes its error.
    """
    generator = torch.Generator().manual_seed(0)
    watching = {name: {tensor: OBSERVERS[name]() for tensor in tensors} for name in observers}
    for values in tensors_of(network, batches, tensors):
        for tensor, output in values.items():
            flat = output.reshape(-1)
            most = _VALUES * len(output)
            if len(flat) > most:
                flat = flat[torch.randint(len(flat), (most,), generator=generator)]
            for name in observers:
                watching[name][tensor].update(output if name == "minmax" else flat)
    rounding = partial(fake_quantize_input, bits=INT8_BITS)
    found: dict[ActivationObserver, dict[str, Range]] = {}
    for name, each in watching.items():
        with trying(f"ranges of activations by the observer {name}"):
            ends = {tensor: observer.value_range(rounding) for tensor, observer in each.items()}
            found[name] = {tensor: both for tensor, both in ends.items() if both}
    return found


def range_of_pixels(batches: Sequence[Tensor]) -> Range:
    """Return the range of a network's input that rounds ``batches`` best of those that clip none of their values.

    Clipping bright pixels would suit dark pictures only. Pixels have 256 values, and where these become -1 to 1, each
    lies in the middle between two steps of that range: the squared error is three times that of a range .4 % wider.
    """
    values = torch.cat([batch.reshape(-1) for batch in batches])
    low, high = extremes_of(values)
    values = values[torch.randint(len(values), (_PIXELS,), generator=torch.Generator().manual_seed(0))]

    def squared_error(upper: float) -> float:
        return float((fake_quantize_input(values, low, upper, bits=INT8_BITS) - values).square().mean())

    return low, min((high * wider for wider in _WIDER), key=squared_error)


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
        wanted = min(max(_ROWS_OF_A_COLUMN * self._second.shape[1], _ROWS[0]), _ROWS[1])
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
            least = least.maximum(offsets.abs().view_as(least) / (_BIAS_STEPS * input_scale))
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


def tensors_of(network: bytes, batches: Sequence[Tensor], wanted: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Yield what ``wanted`` tensors of ``network`` are on a few images after the other."""
    model = onnx.load_from_string(network)
    own_input, shown = model.graph.input[0].name, {each.name for each in model.graph.output}
    model.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in wanted if name not in {own_input, *shown}
    )
    opened = RuntimeModel(model.SerializeToString())
    for batch in batches:
        for part in torch.split(batch, opened.fixed_batch or AT_ONCE):
            found = opened.tensors(part)
            yield {name: part if name == own_input else found[name] for name in wanted}
