"""The int8 file of onnxruntime's own quantizer, in the setting that its documentation advises for processors."""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor

from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.runtimes.quantizers import DefaultInt8


def default_int8(network: bytes, batches: Sequence[Tensor], *, reduce_range: bool = False) -> DefaultInt8:
    """Return the file of ``quantize_static``, with ranges from ``batches``, (N, C, H, W).

    With ``reduce_range`` weights have 7 bits, as its documentation advises for processors on which 8 saturate.

    Raises:
        InvalidSpec: onnxruntime cannot quantize it.
    """
    bits = "7-bit weights, " if reduce_range else ""
    setting = f"quantize_static, per channel, unsigned activations, {bits}min-max"
    images = _Images(onnx.load_from_string(network).graph.input[0].name, batches)
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        before.write_bytes(network)  # a model in memory would be changed by the quantizer
        logging.disable(logging.WARNING)  # it recommends at each file to shape it first, and prints what it collects
        try:
            with redirect_stdout(io.StringIO()):
                quantize_static(
                    before,
                    after,
                    images,
                    quant_format=QuantFormat.QDQ,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                    per_channel=True,
                    reduce_range=reduce_range,
                )
        except Exception as error:  # it raises errors of many packages
            if is_about_memory(error):
                raise
            raise InvalidSpec(
                f"onnxruntime cannot write this network in int8: {type(error).__name__}: {first_line_of(error)}."
            ) from error
        finally:
            logging.disable(logging.NOTSET)
        return DefaultInt8(content=after.read_bytes(), setting=setting)


class _Images(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    """Shows images to onnxruntime's calibration, batch by batch."""

    def __init__(self, name: str, batches: Sequence[Tensor]) -> None:
        self._name, self._left = name, iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch by the name of the input; None after the last."""
        batch = next(self._left, None)
        return None if batch is None else {self._name: batch.cpu().contiguous().numpy()}
