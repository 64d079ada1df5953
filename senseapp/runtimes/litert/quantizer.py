"""LiteRT files in int8, with a precision for each operator, by LiteRT's own quantizer and recipes.

Weights have a scale for each channel, activations one for each tensor; inputs and outputs stay in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from litert_quantizer import qtyping
from litert_quantizer.quantizer import Quantizer as Library
from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.steps import StepTitle
from senseapp.metrics.paired_tests import clearly_less
from senseapp.networks.network import Network
from senseapp.runtimes.litert.file import computing, followers, operators, parsed
from senseapp.runtimes.litert.library import library_call
from senseapp.runtimes.litert.rounding import input_ranges, products, tensors_of, with_products
from senseapp.runtimes.onnxruntime.int8 import ONLY_WEIGHTED
from senseapp.runtimes.onnxruntime.integer_weights import integers_of
from senseapp.runtimes.onnxruntime.rounding.ranges import observed_ranges
from senseapp.runtimes.onnxruntime.rounding.weights import RoundedProduct, rounded_products
from senseapp.runtimes.quantizers import Fitting, Quantizer

_ALL = qtyping.TFLOperationName.ALL_SUPPORTED
_NO_QUANTIZE = "no_quantize"
_BETWEEN_ROUNDINGS = frozenset({"GELU", "RSQRT"})
_BITS = 8
_OBSERVERS: tuple[ActivationObserver, ...] = ("mse", "minmax")
_LARGEST_IN_4 = 7
_LEAST_LEFT = 0.3  # of the time of a search, by which ranges are chosen
Recipe = list[dict[str, Any]]


class LiteRtQuantizer(Quantizer):
    """Writes one float file in int8, with ranges from images.

    Args:
        network: the float file.
        calibration: images (N, C, H, W), whose least and largest values are the ranges.
        activation_bits: 8, or 16.
        whole: whether all is in int8 also where networks have layer norms or GELU.

    Attributes:
        in_float: operators that are so in every file: without ``whole``, of such networks those without weights. A ViT
            had .2 times the loss and took .33 times the time so.
        ranges: of activations by tensor, averages of least and largest values until :meth:`fit` chooses others.
        rounded: weights and biases by operator, in place of the quantizer's, that :meth:`fit` finds.
    """

    def __init__(
        self, network: bytes, calibration: Sequence[Tensor], *, activation_bits: int = _BITS, whole: bool = False
    ) -> None:
        self.network, self._activation_bits = network, activation_bits
        self._followers = followers(network)
        self._operators, weighted = operators(network), {each.node for each in products(network)}
        keeps = not whole and bool(_BETWEEN_ROUNDINGS & {each.kind for each in self._operators})
        self.in_float = tuple(each.name for each in self._operators if keeps and each.name not in weighted)
        self.notes = (ONLY_WEIGHTED,) if keeps else ()
        model = parsed(network)
        (self._signature,), (graph,) = model.signatureDefs, model.subgraphs
        self._images = graph.tensors[graph.inputs[0]].name.decode()
        self.rounded: Mapping[str, RoundedProduct] = {}
        (name,) = (each.name.decode() for each in self._signature.inputs)
        images = [{name: image[None].cpu().numpy()} for batch in calibration for image in batch]
        quantizer = self._library()
        with library_call("LiteRT's quantizer cannot find the ranges of this network"):
            self.ranges: Mapping[str, Any] = quantizer.calibrate(
                {self._signature.signatureKey.decode(): images}, num_threads=1
            )

    def recipe(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> Recipe:
        """Return the recipe of a file as LiteRT's quantizer reads it from JSON."""
        return list(self._library(but, weights_only).get_quantization_recipe())

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the file in int8; see :meth:`Quantizer.write`."""
        quantizer = self._library(but, weights_only)
        with library_call("LiteRT's quantizer cannot write this network in int8"):
            found = bytes(quantizer.quantize(self.ranges).quantized_model)
        return with_products(found, self.rounded) if self.rounded else found

    def fit(self, fitting: Fitting, opened: Callable[[bytes], Network]) -> None:
        """Fit ranges, weights and biases to images; a step that fails is left out.

        Weights are fitted beside the first ranges; others are taken where they do clearly less harm with these weights
        on the images that judge, which are then fitted again.
        """
        steps, usual, least = fitting.steps, self.ranges, list[float]()
        steps.progress.begin(StepTitle.WEIGHTS)
        for observer in _OBSERVERS:
            if least and not steps.left(_LEAST_LEFT):
                break
            before, is_better = (self.ranges, self.rounded), False
            with steps.trying(f"ranges of activations by the observer {observer}"):
                steps.progress("Finding the ranges of activations")
                self.ranges = self._observed(usual, fitting.batches, observer)
                if not least:
                    self._fit_weights(fitting)
                steps.progress("Choosing the ranges of activations")
                found = fitting.damages_of(opened(self.write()))
                is_better = not least or clearly_less(found, least, least=0)
                if least and is_better:
                    self._fit_weights(fitting)
                least = least or [*found]
            if not is_better:
                self.ranges, self.rounded = before

    def _observed(
        self, usual: Mapping[str, Any], batches: Sequence[Tensor], observer: ActivationObserver
    ) -> dict[str, Any]:
        """Return ranges as LiteRT's quantizer counts them, by an observer; those that it does not see are the usual."""
        read = tensors_of(self.network, batches, list(usual))
        ranges = {name: dict(each) for name, each in usual.items()}
        for name, ends in observed_ranges(read, observer, images=self._images).items():
            shape = np.shape(usual[name]["min"])
            low, high = (np.full(shape, end, np.float32) for end in ends)
            ranges[name] |= {"min": low, "max": high}
        return ranges

    def _fit_weights(self, fitting: Fitting) -> None:
        """Find weights and biases that change outputs least beside the ranges of inputs."""
        with fitting.steps.trying("weights fitted to the images"):
            nodes = products(self.network)
            self.rounded = rounded_products(
                self.network,
                fitting.batches,
                nodes,
                input_ranges(self.write(), nodes),
                integers=fitting.integers,
                paired=False,  # sums of products have 32 bits
                progress=fitting.steps.progress,
                tensors=tensors_of,
            )

    def nodes(self, content: bytes) -> list[str]:
        """Return the operators of a file that compute in integers."""
        own = set(computing(content))
        return [each.name for each in self._operators if each.name in own]

    def _library(self, but: Collection[str] = (), weights_only: Collection[str] = ()) -> Any:
        """Return LiteRT's quantizer with the rules of a file; of those that fit an operator the last one counts."""
        quantizer, only = Library(bytearray(self.network)), {each.name: _only(*each.writes) for each in self._operators}
        quantizer.add_static_config(".*", _ALL, self._activation_bits, _BITS)
        for border in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
            quantizer.update_quantization_recipe(".*", border, algorithm_key=_NO_QUANTIZE)
        for name in (*self.in_float, *but, *weights_only):
            for each in (name, *self._followers.get(name, ())):
                quantizer.update_quantization_recipe(only[each], _ALL, algorithm_key=_NO_QUANTIZE)
        for name in weights_only:
            quantizer.add_weight_only_config(f"{only[name]}()", _ALL, _BITS)
        return quantizer


def _only(*writes: str) -> str:
    """Return a pattern of one operator: LiteRT's quantizer calls it by its outputs, each with a semicolon behind."""
    return f"^{re.escape(''.join(f'{name};' for name in writes))}$"  # names have semicolons too


def with_stored_weights(network: bytes, integers: Mapping[str, IntegerWeight]) -> tuple[bytes, int]:
    """Return a float file that stores weights as integers of 8 or 4 bits, by operator, and how many; see Runtime."""
    quantizer, found = Library(bytearray(network)), dict[str, RoundedProduct]()
    for each in products(network):
        own = integers_of(each, integers[each.node]) if each.node in integers else None
        if own is not None:
            narrow = own.largest <= _LARGEST_IN_4 and not each.depthwise  # whose kernels LiteRT's quantizer has in 8
            quantizer.add_weight_only_config(f"{_only(each.node)}()", _ALL, 4 if narrow else _BITS)
            scale = own.scale.reshape(-1).expand(len(each.values)).numpy()
            found[each.node] = RoundedProduct(integers=own.values.numpy(), scale=scale, axis=each.channel_axis)
    if not found:
        return network, 0
    with library_call("LiteRT's quantizer cannot store these weights"):
        content = bytes(quantizer.quantize().quantized_model)
    return with_products(content, found), len(found)
