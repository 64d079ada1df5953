"""Choice of the ranges of activations of an int8 file by measured damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import OptionalSteps
from senseapp.metrics.paired_tests import clearly_less
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding
from senseapp.runtimes.onnxruntime.rounding.fitted_weights import RoundedProduct, rounded_products
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, range_of_pixels, ranges, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST

_OBSERVERS: tuple[ActivationObserver, ...] = ("mse", "minmax")
"""The first is taken unless the other is clearly better. With fitted weights, ranges of least squared error did .66 to
1.24 times the damage of the smallest and largest values on other photographs (seven networks, .89 in the mean). Ranges
that clip more (percentiles, entropy) suit few images better than others: on EfficientNet-Lite0 percentiles did .6 times
the damage on images that choose, and 1.5 times on others."""
_SHARE = 0.3  # of the time of a search, by which ranges are chosen
_REDUCED_LARGEST = LARGEST // 2  # 7 bits: no pair of products with an input of 8 bits overflows 16


def chosen_rounding(
    writer: Int8Writer,
    batches: Sequence[Tensor],
    *,
    integers: Mapping[str, IntegerWeight],
    damages_of: Callable[[bytes], Sequence[float]],
    steps: OptionalSteps,
) -> Rounding:
    """Return how to round the network of ``writer``, fitted to ``batches``; ``damages_of`` judges parts of others.

    Nodes whose weights are made of ``integers`` keep them, see :func:`.rounded_products`.

    Ranges are those of least squared error, unless another observer of activations does clearly less harm to the whole
    network. Weights are fitted first, as plain ones of 8 bits saturate on processors without VNNI and would hide what
    ranges do. An observer that fails is left out, and so are fitted weights.
    """
    network, largest = writer.network, _REDUCED_LARGEST if writer.reduce_range else LARGEST
    model = onnx.load_from_string(network)
    nodes, pixels = products(model), model.graph.input[0].name
    steps.progress("Finding the ranges of activations")
    found = ranges(network, batches, rounded_tensors(writer.write()), _OBSERVERS, trying=steps.trying)
    for each in found.values():
        if pixels in each:
            each[pixels] = range_of_pixels(batches)

    def with_products(inputs: Mapping[str, Range]) -> Rounding:
        fitted: Mapping[str, RoundedProduct] = {}
        with steps.trying("weights fitted to the images"):
            fitted = rounded_products(
                network,
                batches,
                nodes,
                inputs,
                integers=integers,
                largest=largest,
                any_order=writer.any_order,
                progress=steps.progress,
            )
        return Rounding(ranges=inputs, products=fitted)

    def damages(rounding: Rounding) -> Sequence[float]:
        steps.progress("Choosing the ranges of activations")
        writer.rounding = rounding
        return damages_of(writer.write())

    best = min(found, key=_OBSERVERS.index)
    chosen = with_products(found[best])
    least, first = damages(chosen), best
    for name in found if steps.left(_SHARE) else ():
        with steps.trying(f"ranges of activations by the observer {name}"):
            if name != first and clearly_less(harm := damages(replace(chosen, ranges=found[name])), least, least=0):
                best, least = name, harm
    return chosen if best == first else with_products(found[best])
