"""ONNX as the format of delivered files: metadata, weights stored as integers, a kit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx

from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.core.texts import plural
from senseapp.networks.loaded import Preprocessing
from senseapp.runtimes.file_format import FileFormat, QuantizedWeights
from senseapp.runtimes.onnxruntime.four_bits import with_four_bits
from senseapp.runtimes.onnxruntime.integer_weights import NARROW_BITS, with_integer_weights
from senseapp.runtimes.onnxruntime.kit.metadata import class_names_of, kit_files, with_metadata


class OnnxFormat(FileFormat):
    """ONNX files that ``runtime``, the name of its package, runs."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime

    def version(self, content: bytes) -> int:
        """Check the file by ONNX's own checker, and return its operator set."""
        model = onnx.load_from_string(content)
        onnx.checker.check_model(model)
        version: int = next(each.version for each in model.opset_import if not each.domain)
        return version

    def described(
        self,
        content: bytes,
        *,
        preprocessing: Preprocessing | None,
        class_names: Sequence[str],
        thresholds: tuple[float, float] | None = None,
    ) -> bytes:
        """Return the file with class names, preprocessing and thresholds of scores in its metadata."""
        return with_metadata(content, preprocessing=preprocessing, class_names=class_names, thresholds=thresholds)

    def class_names(self, content: bytes) -> tuple[str, ...]:
        """Return the class names in the file's metadata."""
        return class_names_of(content)

    def kit(self, name: str) -> dict[str, str]:
        """Return a script and a notebook that run a file of :meth:`described`."""
        return kit_files(name, runtime=self._runtime)

    def with_quantized_weights(
        self, content: bytes, nodes: Collection[str], integers: Mapping[str, IntegerWeight]
    ) -> QuantizedWeights:
        """Return the file with weights in 4 bits in onnxruntime's operator for them, others as integers."""
        network, in_operator = with_four_bits(content, integers)
        network, stored = with_integer_weights(network, integers)
        missing = len(nodes) - stored - len(in_operator)
        found = [
            f"Weights of {plural(count, 'layer')} are {what}."
            for count, what in (
                (stored, "stored as integers, and computed with in float"),
                (len(in_operator), f"in {NARROW_BITS} bits in onnxruntime's operator for them (MatMulNBits)"),
                (missing, "rounded as the schedule says, and stored in 32 bits"),
            )
            if count > 0
        ]
        return QuantizedWeights(content=network, notes=tuple(found))
