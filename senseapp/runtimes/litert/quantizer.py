"""LiteRT files in int8, with a precision for each operator, by LiteRT's own quantizer and recipes.

Weights have a scale for each channel, activations, of 8 or 16 bits, one for each tensor; inputs and outputs are float32
or int8.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from ai_edge_litert.schema_py_generated import TensorType
from litert_quantizer import qtyping
from litert_quantizer.quantizer import Quantizer as Library

from senseapp.compressions.quantization.grid import IntegerWeight
from senseapp.records.deployment import INT8_ENDS
from senseapp.runtimes.litert.file import BORDERS, INTEGERS, MOVING, PRODUCTS, LiteRtGraph, followers, operators
from senseapp.runtimes.litert.rounding import products, tensors_of, with_products
from senseapp.runtimes.onnxruntime.int8 import ONLY_WEIGHTED, fitted_rounding
from senseapp.runtimes.onnxruntime.integer_weights import integers_of
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, observed_ranges
from senseapp.runtimes.onnxruntime.rounding.weights import RoundedProduct, rounded_products
from senseapp.runtimes.quantizers import Fitting, Quantizer, library_call

_ALL = qtyping.TFLOperationName.ALL_SUPPORTED
_NO_QUANTIZE = "no_quantize"
_BETWEEN_ROUNDINGS = frozenset({"GELU", "RSQRT"})
_BITS = 8
_FLOAT_ENDS = "The input and the output are float32."
_IN_16_BITS = (
    "Activations have 16 bits, as NPUs compute with. On this computer that is slower than float; the time on an NPU "
    "was not measured."
)
_LARGEST_IN_4 = 7
_RECIPE_README = """\
Precision of each operator for litert-quantizer. Operators are named as litert-torch converts the network.

from litert_quantizer.quantizer import Quantizer
quantizer = Quantizer("float.tflite", "litert_quantizer.json")
ranges = quantizer.calibrate({"serving_default": images})  # [{"args_0": one image, (1, C, H, W)}, ...]
quantizer.quantize(ranges).export_model("int8.tflite")
"""


class LiteRtQuantizer(Quantizer):
    """Writes one float file in int8, with ranges from images.

    Args:
        network: the float file.
        fitting: images, whose least and largest values are the ranges until :meth:`fit`, and the format.

    Attributes:
        in_float: operators that are so in every file: of networks with layer norms or GELU those without weights. A ViT
            had .2 times the loss and took .33 times the time so.
        rounding: ranges of activations by tensor, where they are not those of the calibration, and weights and biases
            by operator, in place of the quantizer's; :meth:`fit` finds them.
    """

    def __init__(self, network: bytes, fitting: Fitting) -> None:
        self.network, self.rounding, self._fitting = network, Rounding(), fitting
        self.int8_ends, self.activation_bits = fitting.int8_ends, fitting.activation_bits
        self._followers = followers(network)
        self._operators, weighted = operators(network), {each.node for each in products(network)}
        keeps = bool(_BETWEEN_ROUNDINGS & {each.kind for each in self._operators})
        self.in_float = tuple(each.name for each in self._operators if keeps and each.name not in weighted)
        self.notes = (ONLY_WEIGHTED,) if keeps else ()
        self.notes += (INT8_ENDS if self.int8_ends else _FLOAT_ENDS,)
        self.notes += (_IN_16_BITS,) if self.activation_bits > _BITS else ()
        graph = LiteRtGraph(network)
        self._images, (signature,) = graph.images, graph.model.signatureDefs
        (name,) = (each.name.decode() for each in signature.inputs)
        images = [{name: image[None].cpu().numpy()} for batch in fitting.batches for image in batch]
        with library_call("LiteRT's quantizer cannot find the ranges of this network"):
            self._ranges: Mapping[str, Any] = _with_rules(network, (), ()).calibrate(
                {signature.signatureKey.decode(): images}, num_threads=1
            )

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the file in int8; see :meth:`Quantizer.write`."""
        ranges = dict(self._ranges)
        for name, ends in self.rounding.ranges.items():
            low, high = (np.full(np.shape(ranges[name]["min"]), end, np.float32) for end in ends)
            ranges[name] = {**ranges[name], "min": low, "max": high}
        with library_call("LiteRT's quantizer cannot write this network in int8"):
            found = bytes(self._library(but, weights_only).quantize(ranges).quantized_model)
        return with_products(found, self.rounding.products) if self.rounding.products else found

    def fit(self) -> None:
        """Fit ranges, weights and biases to images, see :func:`.fitted_rounding`; where that fails, they stay."""
        fitting, nodes, batches = self._fitting, products(self.network), self._fitting.batches

        def observed() -> dict[str, Range]:
            read = tensors_of(self.network, batches, list(self._ranges))
            # 16 bits need not clip; the library's ranges are moving averages, which do
            return observed_ranges(read, "mse" if self.activation_bits == _BITS else "minmax", images=self._images)

        def fitted(ranges: Mapping[str, Range]) -> dict[str, RoundedProduct]:
            return rounded_products(
                self.network,
                batches,
                nodes,
                ranges,
                integers=fitting.integers,
                paired=False,  # sums of products have 32 bits
                progress=fitting.steps.progress,
                tensors=tensors_of,
            )

        with fitting.steps.trying("ranges and weights fitted to the images"):
            self.rounding = fitted_rounding(fitting, observed, fitted)

    def nodes(self, content: bytes) -> list[str]:
        """Return the operators of a file that compute in integers, without those that only move values."""
        kinds = MOVING | BORDERS
        own = {each.name for each in operators(content) if each.in_integers and each.kind not in kinds}
        return [each.name for each in self._operators if each.name in own]

    def _library(self, but: Collection[str], weights_only: Collection[str]) -> Any:
        """Return LiteRT's quantizer with the rules of a file; of those that fit an operator the last one counts."""
        in_float = [
            each for name in (*self.in_float, *but, *weights_only) for each in (name, *self._followers.get(name, ()))
        ]
        return _with_rules(self.network, in_float, weights_only, int8_ends=self.int8_ends, bits=self.activation_bits)


def recipes_of(content: bytes) -> dict[str, str]:
    """Return the recipe by which LiteRT's quantizer gives each operator the precision that it has in a file."""
    made = {name for each in operators(content) for name in each.writes}
    stored = {each.writes[0] for each in operators(content) if each.kind == "DEQUANTIZE" and each.reads[0] not in made}
    in_float = [each for each in operators(content) if not each.in_integers and each.kind not in BORDERS]
    weights_only = [each.name for each in in_float if each.kind in PRODUCTS and each.reads[1] in stored]
    graph = LiteRtGraph(content)
    int8_ends = any(each.type in INTEGERS for each in graph.tensors if each.name.decode() == graph.images)
    bits = 16 if any(each.type == TensorType.INT16 for each in graph.tensors) else _BITS
    quantizer = _with_rules(content, [each.name for each in in_float], weights_only, int8_ends=int8_ends, bits=bits)
    recipe = json.dumps(quantizer.get_quantization_recipe(), indent=1)
    return {"litert_quantizer.json": recipe, "RECIPE.txt": _RECIPE_README}


def _with_rules(
    network: bytes, in_float: Collection[str], weights_only: Collection[str], *, int8_ends: bool = False, bits: int = 8
) -> Any:
    """Return LiteRT's quantizer of a network with activations of ``bits`` in all but operators ``in_float``."""
    quantizer, only = Library(bytearray(network)), {each.name: _only(*each.writes) for each in operators(network)}
    quantizer.add_static_config(".*", _ALL, bits, _BITS)
    for border in () if int8_ends else (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        quantizer.update_quantization_recipe(".*", border, algorithm_key=_NO_QUANTIZE)
    for name in in_float:
        quantizer.update_quantization_recipe(only[name], _ALL, algorithm_key=_NO_QUANTIZE)
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
