"""onnxruntime as a :class:`~senseapp.runtimes.base.Runtime`: the implementation of each operation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor, nn

from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.records.deployment import LayerTimes, OperatorTime
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.call_times import COMPARING_TURNS, Kernel, ratio
from senseapp.runtimes.file_format import FileFormat
from senseapp.runtimes.foreign import ForeignFiles, RuntimeNetwork
from senseapp.runtimes.onnx_network import OnnxSession, saturates
from senseapp.runtimes.onnxruntime import ONNXRUNTIME, timing
from senseapp.runtimes.onnxruntime.default_quantizer import default_int8
from senseapp.runtimes.onnxruntime.file_format import OnnxFormat
from senseapp.runtimes.onnxruntime.foreign import OnnxFiles
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, layers_of_nodes, multiplies_integers
from senseapp.runtimes.onnxruntime.onnx_template import OnnxTemplate
from senseapp.runtimes.onnxruntime.rounding.fit import FileRunner, fit
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, kernels, machine
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer


class OnnxRuntime(Runtime):
    """onnxruntime on the processor of this machine."""

    description = ONNXRUNTIME
    file_format: FileFormat = OnnxFormat(ONNXRUNTIME.name)
    foreign_files: ForeignFiles = OnnxFiles()
    int8_note = (
        "Weights of convolutions and matrix products are chosen so that sums of their products with 8 bits fit in 16, "
        "so the file does the same on processors without VNNI, where onnxruntime's own quantizer may saturate."
    )

    remedy_note = (
        "Parts that 8 bits harm are left in float: activations of 16 bits are no remedy, as onnxruntime computes them "
        "in float between roundings, in 1.5 to 2 times float's time (measured with version 1.32)."
    )

    def exporter(self, model: nn.Module, example: Tensor) -> Exporter:
        """Return what exports ``model`` to ONNX once for all its weights."""
        return OnnxTemplate(model, example)

    def open(self, content: bytes, *, threads: int | None = None) -> RuntimeNetwork:
        """Open an ONNX file; raises InvalidSpec where the runtime cannot."""
        return self._as_network(self.opened(content, threads=threads))

    def opened(self, content: bytes, *, threads: int | None = None) -> OnnxSession:
        """Return a file that takes what it declares."""
        return RuntimeModel(content, threads=threads)

    def _as_network(self, file: OnnxSession) -> RuntimeNetwork:
        """Return an open file as a network that takes images."""
        return file

    def unsaturated(self, content: bytes) -> RuntimeNetwork | None:
        """Return a QDQ file with its products in float; None where no sum of products of integers saturates here."""
        saturates_here = self.saturates and multiplies_integers(content)
        return self._as_network(RuntimeModel(content, fused=False)) if saturates_here else None

    @property
    def saturates(self) -> bool:
        """Whether sums of products of 8 bits saturate here."""
        return saturates(RuntimeModel)

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return onnxruntime on edited copies of an uploaded file."""
        from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime  # which is made of this class

        return UploadedRuntime(opened)

    def machine(self) -> str:
        """Return the processor, whether it has VNNI, and the version of onnxruntime."""
        return machine()

    def layers_of_nodes(self, content: bytes, layers: Collection[str]) -> dict[str, str]:
        """Return the layer that each node belongs to, by the names that torch's exporter leaves."""
        return layers_of_nodes(content, layers)

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Quantizer:
        """Return what writes QDQ files, with weights of 7 bits and a scale for each channel."""
        return self._writer(content, calibration)

    def _writer(self, content: bytes, calibration: Sequence[Tensor]) -> Int8Writer:
        """Return what writes a file in int8."""
        return Int8Writer(content, calibration)

    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Quantizer:
        """Return the same with fitted ranges, weights and biases, where that does less harm."""
        writer = self._writer(content, fitting.batches)

        def time_ratio(file: bytes, other: bytes) -> float:
            opened = [self._as_network(self.opened(each, threads=1)) for each in (file, other)]
            images = fitting.batches[0] if opened[0].fixed_batch else fitting.batches[0][:1]
            return ratio(*self.times(opened, images, turns=COMPARING_TURNS)).value

        runner = FileRunner(
            opened=lambda file: self._as_network(self.opened(file)),
            in_float=lambda file: self._as_network(RuntimeModel(file, fused=False)),
            time_ratio=time_ratio,
        )
        fit(writer, fitting, runner)
        return writer

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return the better of two files of ``quantize_static``."""
        return default_int8(
            content,
            fitting.batches,
            damage_of=lambda file: fitting.damage_of(self._as_network(self.opened(file))),
            reduce_range=fitting.reduce_range,
            trying=fitting.steps.trying,
        )

    def kernels(self, content: bytes, *, threads: int, batch: int) -> list[Kernel]:
        """Return the kernels of a file, by the runtime's own profile."""
        return kernels(content, threads=threads, batch=batch)

    def time_layers(
        self, content: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers by the runtime's own profile; see :mod:`senseapp.runtimes.onnxruntime.timing`."""
        return timing.time_layers(content, quantizer.write(), owners, profiler=self, threads=threads, batch=batch)

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return where the time of a call goes, from the runtime's own profile."""
        return timing.operators(content, profiler=self, threads=threads, batch=batch)

    def time_products(
        self, content: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> tuple[dict[str, tuple[float, int]], float]:
        """Return the seconds of each layer's kernels by the runtime's own profile."""
        return timing.time_products(content, owners, profiler=self, threads=threads, batch=batch)


OPERATIONS = OnnxRuntime()
