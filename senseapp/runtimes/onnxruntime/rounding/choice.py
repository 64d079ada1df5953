"""Which ranges of activations an int8 file takes: those with which it is measured to do least harm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.core.steps import OptionalSteps
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding
from senseapp.runtimes.onnxruntime.rounding.calibration import Range, RoundedProduct, ranges, rounded_products
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST

_OBSERVERS: tuple[ActivationObserver, ...] = ("mse", "minmax", "percentile", "entropy")
_TRIED = 8  # tensors whose ranges differ most
_DIFFERENT = 0.1  # of a range's width
_LEAST_GAIN = 0.02  # of the damage
_REDUCED_LARGEST = 63


def chosen_rounding(
    writer: Int8Writer, batches: Sequence[Tensor], *, damage_of: Callable[[bytes], float], steps: OptionalSteps
) -> Rounding:
    """Return how to round the network of ``writer``, fitted to ``batches``; ``damage_of`` judges, on other images.

    Every observer of activations is tried for the whole network, with weights fitted to the first, as plain ones of 8
    bits saturate on processors without VNNI and would hide what ranges do. Then they are tried tensor by tensor, where
    two of them differ most. An observer that fails is left out, and so are fitted weights.
    """
    network, largest = writer.network, _REDUCED_LARGEST if writer.reduce_range else LARGEST
    nodes = products(onnx.load_from_string(network))
    steps.progress("Finding the ranges of activations")
    found = ranges(network, batches, rounded_tensors(writer.write()), _OBSERVERS, trying=steps.trying)

    def with_products(inputs: Mapping[str, Range]) -> Rounding:
        fitted: Mapping[str, RoundedProduct] = {}
        with steps.trying("weights fitted to the images"):
            fitted = rounded_products(network, batches, nodes, inputs, largest=largest, progress=steps.progress)
        return Rounding(ranges=inputs, products=fitted)

    def damage(rounding: Rounding) -> float:
        writer.rounding = rounding
        return damage_of(writer.write())

    first, damages = min(found, key=_OBSERVERS.index), dict[ActivationObserver, float]()
    chosen = with_products(found[first])
    for name in found:
        steps.progress("Choosing the ranges of activations")
        with steps.trying(f"ranges of activations by the observer {name}"):
            damages[name] = damage(replace(chosen, ranges=found[name]))
    best = min(damages, key=damages.__getitem__)
    chosen = chosen if best == first else with_products(found[best])
    least = damage(chosen)
    for tensor in _most_different(found):
        for name in found:
            steps.progress("Choosing the ranges of activations")
            tried = replace(chosen, ranges={**chosen.ranges, tensor: found[name][tensor]})
            if tried.ranges[tensor] != chosen.ranges[tensor] and (harm := damage(tried)) < (1 - _LEAST_GAIN) * least:
                chosen, least = tried, harm
    return chosen


def rounded_tensors(content: bytes) -> list[str]:
    """Return the tensors that a QDQ file rounds, as the float network calls them."""
    names = [node.input[0] for node in onnx.load_from_string(content).graph.node if node.op_type == "QuantizeLinear"]
    return [name.removesuffix("_QuantizeLinear_Input") for name in names]


def _most_different(found: Mapping[ActivationObserver, Mapping[str, Range]]) -> list[str]:
    """Return the tensors whose ranges depend most on the observer, by the share of the widest."""

    def difference(tensor: str) -> float:
        widths = [each[tensor][1] - each[tensor][0] for each in found.values() if tensor in each]
        return 1 - min(widths) / max(widths) if len(widths) == len(found) and max(widths) > 0 else 0.0

    tensors = sorted(next(iter(found.values())), key=difference, reverse=True)
    return [tensor for tensor in tensors if difference(tensor) > _DIFFERENT][:_TRIED]
