"""LiteRT files in int8, with a precision for each operator, by LiteRT's own quantizer and recipes.

Weights have a scale for each channel, activations one for each tensor; inputs and outputs stay in float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from litert_quantizer import qtyping
from litert_quantizer.quantizer import Quantizer as Library
from torch import Tensor

from senseapp.runtimes.litert.file import BORDERS, PRODUCTS, computing, followers, operators, parsed
from senseapp.runtimes.litert.library import library_call
from senseapp.runtimes.quantizers import Quantizer

_ALL = qtyping.TFLOperationName.ALL_SUPPORTED
_NO_QUANTIZE = "no_quantize"
_BITS = 8
Recipe = list[dict[str, Any]]
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
        calibration: images (N, C, H, W), whose least and largest values are the ranges.
        activation_bits: 8, or 16.
    """

    def __init__(self, network: bytes, calibration: Sequence[Tensor], *, activation_bits: int = _BITS) -> None:
        self.network, self._activation_bits = network, activation_bits
        self._followers = followers(network)
        (self._signature,) = parsed(network).signatureDefs
        (name,) = (each.name.decode() for each in self._signature.inputs)
        images = [{name: image[None].cpu().numpy()} for batch in calibration for image in batch]
        quantizer = self._library()
        with library_call("LiteRT's quantizer cannot find the ranges of this network"):
            self._ranges = quantizer.calibrate({self._signature.signatureKey.decode(): images}, num_threads=1)

    def recipe(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> Recipe:
        """Return the recipe of a file as LiteRT's quantizer reads it from JSON."""
        return list(self._library(but, weights_only).get_quantization_recipe())

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the file in int8; see :meth:`Quantizer.write`."""
        quantizer = self._library(but, weights_only)
        with library_call("LiteRT's quantizer cannot write this network in int8"):
            return bytes(quantizer.quantize(self._ranges).quantized_model)

    def nodes(self, content: bytes) -> list[str]:
        """Return the operators of a file that compute in integers."""
        own = set(computing(content))
        return [each.name for each in operators(self.network) if each.name in own]

    def _library(self, but: Collection[str] = (), weights_only: Collection[str] = ()) -> Any:
        """Return LiteRT's quantizer with the rules of a file; of those that fit an operator the last one counts."""
        in_float = [each for name in (*but, *weights_only) for each in (name, *self._followers.get(name, ()))]
        return _with_rules(self.network, in_float, weights_only, self._activation_bits)


def recipes_of(content: bytes) -> dict[str, str]:
    """Return the recipe by which LiteRT's quantizer gives each operator the precision that it has in a file."""
    made = {name for each in operators(content) for name in each.writes}
    stored = {each.writes[0] for each in operators(content) if each.kind == "DEQUANTIZE" and each.reads[0] not in made}
    in_float = [each for each in operators(content) if not each.in_integers and each.kind not in BORDERS]
    weights_only = [each.name for each in in_float if each.kind in PRODUCTS and each.reads[1] in stored]
    quantizer = _with_rules(content, [each.name for each in in_float], weights_only, _BITS)
    recipe = json.dumps(quantizer.get_quantization_recipe(), indent=1)
    return {"litert_quantizer.json": recipe, "RECIPE.txt": _RECIPE_README}


def _with_rules(network: bytes, in_float: Collection[str], weights_only: Collection[str], bits: int) -> Any:
    """Return LiteRT's quantizer of a network with activations of ``bits``, but of operators ``in_float``."""
    quantizer = Library(bytearray(network))
    quantizer.add_static_config(".*", _ALL, bits, _BITS)
    for border in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        quantizer.update_quantization_recipe(".*", border, algorithm_key=_NO_QUANTIZE)
    for name in in_float:
        quantizer.update_quantization_recipe(_only(name), _ALL, algorithm_key=_NO_QUANTIZE)
    for name in weights_only:
        quantizer.add_weight_only_config(f"{_only(name)}()", _ALL, _BITS)
    return quantizer


def _only(name: str) -> str:
    """Return a pattern of one operator: LiteRT's quantizer calls it by its outputs, each with a semicolon behind."""
    return f"^{re.escape(name)};"
