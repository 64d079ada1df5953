"""onnxruntime as a :class:`~senseapp.runtimes.base.Runtime`: the implementation of each operation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import onnx
from torch import Tensor, nn

from senseapp.core.steps import StepTitle
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.records.deployment import LayerTimes, OperatorTime
from senseapp.runtimes.base import Exporter, Runtime
from senseapp.runtimes.call_times import COMPARING_TURNS, ratio
from senseapp.runtimes.file_format import FileFormat
from senseapp.runtimes.foreign import ForeignFiles, RuntimeNetwork
from senseapp.runtimes.onnx_network import OnnxSession, saturates
from senseapp.runtimes.onnxruntime import ONNXRUNTIME, timing
from senseapp.runtimes.onnxruntime.bench import Profiler
from senseapp.runtimes.onnxruntime.default_quantizer import best_default
from senseapp.runtimes.onnxruntime.file_format import OnnxFormat
from senseapp.runtimes.onnxruntime.foreign import OnnxFiles
from senseapp.runtimes.onnxruntime.int8 import (
    Int8Writer,
    Rounding,
    layers_of_nodes,
    multiplies_integers,
    weighted_nodes,
)
from senseapp.runtimes.onnxruntime.onnx_template import OnnxTemplate
from senseapp.runtimes.onnxruntime.profile import PROFILER
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection
from senseapp.runtimes.onnxruntime.rounding.fit import chosen_rounding
from senseapp.runtimes.onnxruntime.rounding.warnings import calibration_warnings
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel, machine
from senseapp.runtimes.quantizers import DefaultInt8, Fitting, Quantizer

_UNWEIGHTED = (
    "Only convolutions and matrix products with weights compute in int8: to round what lies between them too (layer "
    "norms, softmax, GELU, additions) was measured to do more harm, and to take no less time."
)
_CORRECTED = (
    "Biases are corrected, so that each convolution and matrix product keeps the mean that it has in float: measured, "
    "all in int8 does less harm so."
)
_NO_INTEGERS = frozenset({"LayerNormalization", "Gelu"})
"""Nodes that the quantizer rounds the inputs and outputs of, and that compute in float all the same."""
_MUCH_LESS = 0.7  # of the damage
_CORRECTING_GAIN = 0.01  # of the damage, below which corrected biases are not worth their time


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
        return self._model(content, threads=threads)

    def _model(self, content: bytes, *, threads: int | None = None, fused: bool = True) -> RuntimeNetwork:
        """Return a file that takes images; without ``fused``, it computes products in float between roundings."""
        return self._file(content, threads=threads) if fused else RuntimeModel(content, fused=False)

    def _file(self, content: bytes, *, threads: int | None = None) -> OnnxSession:
        """Return a file that takes what it declares."""
        return RuntimeModel(content, threads=threads)

    def unsaturated(self, content: bytes) -> RuntimeNetwork | None:
        """Return a QDQ file with its products in float; None where no sum of products of integers saturates here."""
        return RuntimeModel(content, fused=False) if self._saturates and multiplies_integers(content) else None

    @property
    def _saturates(self) -> bool:
        """Whether sums of products of 8 bits saturate here."""
        return saturates(RuntimeModel)

    @property
    def _profiler(self) -> Profiler:
        """What takes the times of the kernels of files."""
        return PROFILER

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

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> AbstractContextManager[Quantizer]:
        """Return onnxruntime's quantizer, a scale for each channel of weights."""
        return self._writer(content, calibration, rounding=Rounding())

    def _writer(self, content: bytes, calibration: Sequence[Tensor], **settings: Any) -> Int8Writer:
        """Return what writes a file in int8."""
        return Int8Writer(content, calibration, **settings)

    @contextmanager
    def fitted_quantizer(self, content: bytes, fitting: Fitting) -> Iterator[Quantizer]:
        """Yield onnxruntime's quantizer with fitted ranges, weights and biases, where that does less harm.

        Each of these is left out where it fails.
        """
        steps = fitting.steps
        with self._writer(content, fitting.batches, reduce_range=fitting.reduce_range) as writer:
            unweighted = frozenset[str]()
            with steps.trying("what has no weights in float"):
                unweighted = self._better_unweighted(writer, fitting)
            writer.in_float |= unweighted
            rounding = Rounding()
            steps.progress.begin(StepTitle.WEIGHTS)
            with steps.trying("ranges and weights fitted to the images"):
                rounding = chosen_rounding(
                    writer,
                    fitting.batches,
                    integers=fitting.integers,
                    damages_of=lambda file: fitting.damages_of(self._model(file)),
                    steps=steps,
                )
            writer.rounding = rounding
            with steps.trying("corrected biases"):
                writer.correction = self._better_corrected(writer, fitting)
            corrected = writer.correction is not None
            applied = ((_UNWEIGHTED, bool(unweighted)), (_CORRECTED, corrected))
            warnings = tuple[str, ...]()
            with steps.trying("the check of the calibration images"):
                warnings = calibration_warnings(content, writer.write(), fitting.batches, fitting.held_out)
            writer.notes = (*warnings, *writer.notes, *(note for note, holds in applied if holds))
            yield writer

    def _better_unweighted(self, writer: Int8Writer, fitting: Fitting) -> frozenset[str]:
        """Return the nodes without weights of a network with layer norms or GELU, where int8 harms and saves no time.

        Such a network adds to one tensor all along, which is rounded each time, and its norms and GELU compute in float
        between roundings.
        """
        operators = {node.op_type for node in onnx.load_from_string(writer.network).graph.node}
        all_int8 = writer.write()
        rest = frozenset(writer.nodes(all_int8)) - weighted_nodes(all_int8)
        if not operators & _NO_INTEGERS or not rest:
            return frozenset()
        fitting.steps.progress("Trying what has no weights in float")
        fewer = writer.write(but=rest)
        damages = [fitting.damage_of(self._model(file, fused=False)) for file in (fewer, all_int8)]
        if damages[0] > _MUCH_LESS * damages[1]:
            return frozenset()
        opened = [self._model(file, threads=1) for file in (fewer, all_int8)]
        images = fitting.batches[0] if opened[0].fixed_batch else fitting.batches[0][:1]
        quicker = ratio(*self.times(opened, images, turns=COMPARING_TURNS)).value <= 1
        return rest if quicker else frozenset()

    def _better_corrected(self, writer: Int8Writer, fitting: Fitting) -> BiasCorrection | None:
        """Return the correction of biases where the file all in int8 does less harm with it."""
        fitting.steps.progress("Trying corrected biases")
        correction, file = BiasCorrection(writer.network, fitting.batches), writer.write()
        corrected, plain = (fitting.damage_of(self._model(each)) for each in (correction.corrected(file), file))
        return correction if corrected < (1 - _CORRECTING_GAIN) * plain else None

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return the best file of ``quantize_static``."""
        return best_default(
            content,
            fitting.batches,
            damage_of=lambda file: fitting.damage_of(self._model(file)),
            reduce_range=fitting.reduce_range,
            trying=fitting.steps.trying,
            progress=fitting.steps.progress,
            has_time=lambda: fitting.steps.left() > 0,
        )

    def time_layers(
        self, content: bytes, quantizer: Quantizer, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> LayerTimes:
        """Return the times of layers by the runtime's own profile; see :mod:`senseapp.runtimes.onnxruntime.timing`."""
        whole = quantizer.write()
        return timing.time_layers(content, whole, owners, profiler=self._profiler, threads=threads, batch=batch)

    def operators(self, content: bytes, *, threads: int = 1, batch: int = 1) -> tuple[OperatorTime, ...]:
        """Return where the time of a call goes, from the runtime's own profile."""
        return timing.operators(content, profiler=self._profiler, threads=threads, batch=batch)

    def time_products(
        self, content: bytes, owners: Mapping[str, str], *, threads: int = 1, batch: int = 1
    ) -> tuple[dict[str, tuple[float, int]], float]:
        """Return the seconds of each layer's kernels by the runtime's own profile."""
        return timing.time_products(content, owners, profiler=self._profiler, threads=threads, batch=batch)


OPERATIONS = OnnxRuntime()
