"""OpenVINO as a :class:`~senseapp.runtimes.base.Runtime`: it runs the ONNX files that are written for onnxruntime."""

from __future__ import annotations

from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.runtimes.base import Fitting, OwnInt8, Runtime
from senseapp.runtimes.onnx_network import OnnxNetwork
from senseapp.runtimes.onnxruntime.bench import Profiler
from senseapp.runtimes.onnxruntime.kit.metadata import kit_files
from senseapp.runtimes.onnxruntime.operations import OnnxRuntime
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.runtimes.openvino import OPENVINO
from senseapp.runtimes.openvino.profile import PROFILER
from senseapp.runtimes.openvino.runtime import OpenVinoModel, machine


class OpenVino(OnnxRuntime):
    """OpenVINO on the processor of this machine.

    Its files are ONNX, in int8 with QuantizeLinear and DequantizeLinear, which onnxruntime's quantizer writes and
    OpenVINO computes with int8 kernels of its own. What is left in float is chosen by answers and times in OpenVINO.
    """

    description = OPENVINO
    int8_note = (
        "OpenVINO's int8 kernels are its own: they leave out some roundings of the file, and on processors without "
        "VNNI they may saturate. The answers are those on this processor; measure them again on another kind."
    )
    remedy_note = ""

    def _file(self, content: bytes, *, threads: int | None = None, simulated: bool = False) -> OnnxNetwork:
        """Return a file that takes what it declares; ``simulated`` as integers of ONNX are meant to be computed."""
        if simulated:
            return super()._file(content, threads=threads, simulated=True)
        return OpenVinoModel(content, threads=threads)

    @property
    def _profiler(self) -> Profiler:
        """What takes the times of the kernels of files."""
        return PROFILER

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return OpenVINO on edited copies of an uploaded file."""
        return UploadedOpenVino(opened)

    def machine(self) -> str:
        """Return the processor, whether it has VNNI, and the version of OpenVINO."""
        return machine()

    def kit(self, name: str) -> dict[str, str]:
        """Return a script and a notebook that run a file of :meth:`described`."""
        return kit_files(name, runtime=OPENVINO.name)

    def own_int8(self, content: bytes, fitting: Fitting) -> OwnInt8 | None:
        """Return None: OpenVINO's quantizer (NNCF) is a package of its own."""
        return None


class UploadedOpenVino(UploadedRuntime, OpenVino):
    """OpenVINO on edited copies of one uploaded file."""


OPERATIONS = OpenVino()
