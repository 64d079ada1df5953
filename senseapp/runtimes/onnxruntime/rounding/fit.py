"""An int8 file fitted to images: the steps in order, each taken where files do less harm with it.

1. :func:`chosen_rounding`: ranges of activations, and weights and biases that go with them.
2. :func:`_better_corrected`: biases that keep the means of products through the whole network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from senseapp.compressions.quantization import ActivationObserver
from senseapp.core.steps import StepTitle
from senseapp.metrics.paired_tests import clearly_less
from senseapp.networks.network import Network
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.qdq import Rounding, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection
from senseapp.runtimes.onnxruntime.rounding.causes import calibration_warnings
from senseapp.runtimes.onnxruntime.rounding.fitted_weights import RoundedProduct, rounded_products
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, range_of_pixels, ranges
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST
from senseapp.runtimes.quantizers import Fitting

_OBSERVERS: tuple[ActivationObserver, ...] = ("mse", "minmax")
"""The first is taken unless the other is clearly better. With fitted weights, ranges of least squared error did .66 to
1.24 times the damage of the smallest and largest values on other photographs (seven networks, .89 in the mean). Ranges
that clip more (percentiles, entropy) suit few images better than others: on EfficientNet-Lite0 percentiles did .6 times
the damage on images that choose, and 1.5 times on others."""
_REDUCED_LARGEST = LARGEST // 2  # 7 bits: no pair of products with an input of 8 bits overflows 16
_CORRECTED = (
    "Biases are corrected, so that each convolution and matrix product keeps the mean that it has in float: measured, "
    "all in int8 does less harm so."
)


def fit(writer: Int8Writer, fitting: Fitting, opened: Callable[[bytes], Network]) -> None:
    """Fit what files of ``writer`` round to, and note how; a step that fails is left out. ``opened`` opens a file."""
    steps = fitting.steps
    steps.progress.begin(StepTitle.WEIGHTS)
    rounding: Rounding | None = None
    with steps.trying("ranges and weights fitted to the images"):
        rounding = chosen_rounding(writer, fitting, opened)
    writer.rounding = rounding
    with steps.trying("corrected biases"):
        writer.correction = _better_corrected(writer, fitting, opened)
    warnings = tuple[str, ...]()
    with steps.trying("the check of the calibration images"):
        warnings = calibration_warnings(writer.network, writer.rounding.ranges, fitting.batches, fitting.held_out)
    writer.notes = (*warnings, *writer.notes, *(() if writer.correction is None else (_CORRECTED,)))


def chosen_rounding(writer: Int8Writer, fitting: Fitting, opened: Callable[[bytes], Network]) -> Rounding:
    """Return how to round the network of ``writer``, fitted to images and judged on others.

    Nodes whose weights are made of integers keep them, see :func:`.rounded_products`.

    Ranges are those of least squared error, unless another observer of activations does clearly less harm to the whole
    network. Weights are fitted first, as plain ones of 8 bits saturate on processors without VNNI and would hide what
    ranges do. An observer that fails is left out, and so are fitted weights.
    """
    network, batches, steps = writer.network, fitting.batches, fitting.steps
    graph = OnnxGraph(network)
    nodes, pixels = products(graph), graph.inputs[0]
    steps.progress("Finding the ranges of activations")
    found = ranges(network, batches, rounded_tensors(network, writer.in_float), _OBSERVERS, trying=steps.trying)
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
                integers=fitting.integers,
                largest=_REDUCED_LARGEST if fitting.reduce_range else LARGEST,
                any_order=writer.any_order,
                progress=steps.progress,
            )
        return Rounding(ranges=inputs, products=fitted)

    def damages(rounding: Rounding) -> Sequence[float]:
        steps.progress("Choosing the ranges of activations")
        writer.rounding = rounding
        return fitting.damages_of(opened(writer.write()))

    best = min(found, key=_OBSERVERS.index)
    chosen = with_products(found[best])
    least, first = damages(chosen), best
    for name in found if steps.left(0.3) else ():  # of the time of a search, by which ranges are chosen
        with steps.trying(f"ranges of activations by the observer {name}"):
            if name != first and clearly_less(harm := damages(replace(chosen, ranges=found[name])), least, least=0):
                best, least = name, harm
    return chosen if best == first else with_products(found[best])


def _better_corrected(
    writer: Int8Writer, fitting: Fitting, opened: Callable[[bytes], Network]
) -> BiasCorrection | None:
    """Return the correction of biases where the file all in int8 does less harm with it."""
    fitting.steps.progress("Trying corrected biases")
    correction, file = BiasCorrection(writer.network, fitting.batches), writer.write()
    corrected, plain = (fitting.damage_of(opened(each)) for each in (correction.corrected(file), file))
    return correction if corrected < 0.99 * plain else None  # a smaller gain is not worth its time
