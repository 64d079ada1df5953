"""onnxruntime as a :class:`~senseapp.runtimes.base.Runtime`: the implementation of each operation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnxruntime
from torch import Tensor, nn

from senseapp.networks.network import Network
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.call_times import Kernel
from senseapp.runtimes.onnx_network import OnnxSession, processor, saturates
from senseapp.runtimes.onnxruntime import ONNXRUNTIME
from senseapp.runtimes.onnxruntime.default_quantizer import default_int8
from senseapp.runtimes.onnxruntime.file_format import OnnxFormat
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, layers_of_nodes, multiplies_integers
from senseapp.runtimes.onnxruntime.onnx_template import OnnxTemplate
from senseapp.runtimes.onnxruntime.rounding.fit import fit
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, kernels
from senseapp.runtimes.onnxruntime.timing import OnnxTimes
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer


class OnnxRuntime(OnnxFormat, OnnxTimes):
    """onnxruntime on the processor of this machine.

    Int8 files are made of :meth:`float_graph`, on :meth:`inputs`: the network as it was exported, and images.
    """

    description = ONNXRUNTIME
    int8_note = (
        "Weights of convolutions and matrix products are chosen so that sums of their products with 8 bits fit in 16, "
        "so the file does the same on processors without VNNI, where onnxruntime's own quantizer may saturate."
    )

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what exports ``model`` to ONNX once for all its weights."""
        return OnnxTemplate(model, example)

    def open(self, content: bytes, *, threads: int | None = None) -> Network:
        """Open an ONNX file; raises InvalidSpec where the runtime cannot."""
        return self.opened(content, threads=threads)

    def opened(self, content: bytes, *, threads: int | None = None) -> OnnxSession:
        """Return a file that takes what it declares."""
        return RuntimeModel(content, threads=threads)

    def unsaturated(self, content: bytes) -> Network | None:
        """Return a QDQ file with its products in float; None where no sum of products of integers saturates here."""
        return self.in_float(content) if saturates() and multiplies_integers(content) else None

    def in_float(self, content: bytes) -> Network:
        """Return a QDQ file with its products in float."""
        return RuntimeModel(content, fused=False)

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return onnxruntime on edited copies of an uploaded file."""
        from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime  # which is made of this class

        return UploadedRuntime(opened)

    def machine(self) -> str:
        """Return the processor and the runtime: ``AMD EPYC without VNNI, onnxruntime 1.32.0``."""
        return f"{processor()}, onnxruntime {onnxruntime.__version__}"

    def kernels(self, content: bytes, *, threads: int, batch: int) -> list[Kernel]:
        """Return the kernels of a file, by the runtime's own profile."""
        return kernels(content, threads=threads, batch=batch)

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer that each node belongs to, by the names that torch's exporter leaves."""
        return layers_of_nodes(content, layers)

    def float_graph(self, content: bytes) -> bytes:
        """Return a plain graph of a float file: sorted, with a name for each node and constants as initializers."""
        return content

    def inputs(self, batches: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return images as calls of :meth:`float_graph` take them."""
        return batches

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        """Return what writes QDQ files, with weights of 7 bits and a scale for each channel."""
        return self._writer(content, calibration)

    def _writer(self, content: bytes, calibration: Sequence[Tensor]) -> Int8Writer:
        """Return what writes a file in int8."""
        return Int8Writer(self.float_graph(content), self.inputs(calibration))

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Quantizer:
        """Return the same with fitted ranges, weights and biases, where that does less harm."""
        writer = self._writer(content, fitting.batches)
        fitting = replace(fitting, batches=self.inputs(fitting.batches), held_out=self.inputs(fitting.held_out))
        fit(writer, fitting, self.open)
        return writer

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return the file of ``quantize_static``, with weights of 7 bits where 8 saturate."""
        narrow = fitting.reduce_range or saturates()
        return default_int8(self.float_graph(content), self.inputs(fitting.batches), reduce_range=narrow)


OPERATIONS = OnnxRuntime()
