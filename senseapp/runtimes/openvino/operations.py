"""OpenVINO as a :class:`~senseapp.runtimes.base.Runtime`: it runs the ONNX files that are written for onnxruntime."""

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from senseapp.compat.openvino_internals import ExecutedNode, executed_nodes, openvino
from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.core.process import quiet
from senseapp.networks.network import OUTPUTS
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.call_times import RUNS, Kernel, processor, usual_input
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OnnxRuntime
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.runtimes.open_file import Array, FileFacts, OpenFile, Shape
from senseapp.runtimes.openvino import OPENVINO
from senseapp.runtimes.quantizers import DefaultInt8, Fitting

_CORE = openvino.Core()
_KINDS = {
    **dict.fromkeys(("Convolution", "GroupConvolution"), "Conv"),
    **{"Deconvolution": "ConvTranspose", "FullyConnected": "Gemm", "MatMul": "MatMul"},
}


class OpenVino(OnnxRuntime):
    """OpenVINO on the processor of this machine.

    Its files are ONNX, in int8 with QuantizeLinear and DequantizeLinear, which OpenVINO computes with int8 kernels of
    its own. What is left in float is chosen by answers and times in OpenVINO.
    """

    description = OPENVINO
    kit_package = OPENVINO.name
    int8_note = (
        "Weights of convolutions and matrix products are chosen so that sums of their products with 8 bits fit in 16, "
        "so OpenVINO computes these alike on processors without VNNI. It does not round what a convolution adds to "
        "another tensor, which onnxruntime does."
    )

    def opened(self, content: bytes, *, threads: int | None = None) -> OpenFile:
        """Return a file that takes what it declares."""
        return OpenVinoModel(content, threads=threads)

    def quantizer(self, content: bytes, calibration: Sequence[Tensor]) -> Int8Writer:
        """Return what writes a file in int8 on which OpenVINO's kernels do not saturate once weights are fitted.

        On processors without VNNI those for products of two activations, as of attention, would.
        """
        return Int8Writer(self.float_graph(content), self.inputs(calibration), any_order=True, in_attention=False)

    def kernels(self, content: bytes, *, threads: int, batch: int) -> list[Kernel]:
        """Return the kernels of a file: nodes that OpenVINO fuses are one kernel, named by the first of them."""
        network = read(content)
        feeds = [
            usual_input([length or batch for length in _shape(port)], np.dtype(port.element_type.to_dtype()))
            for port in network.inputs
        ]
        network = compiled(network, *(each.shape for each in feeds), threads=threads, profiled=True)
        request = network.create_infer_request()
        averages: dict[str, list[float]] = {}
        with quiet():
            for _ in range(RUNS):
                request.infer(feeds, share_inputs=True)
                for each in request.get_profiling_info():
                    averages.setdefault(each.node_name, []).append(each.real_time.total_seconds())
        return [
            Kernel(
                (*each.parts, each.name)[0],
                _kind(each),
                undisturbed(averages[each.name]),
                each.values,
                in_integers=each.in_integers,
                parts=each.parts,
            )
            for each in executed_nodes(network)
            if each.name in averages
        ]

    def for_file(self, opened: OpenedOnnx) -> Runtime:
        """Return OpenVINO on edited copies of an uploaded file."""
        return UploadedOpenVino(opened)

    def machine(self) -> str:
        """Return the processor, whether it has VNNI, and the version of OpenVINO."""
        return f"{processor()}, OpenVINO {openvino.__version__.partition('-')[0]}"

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return None: OpenVINO's quantizer (NNCF) is a package of its own."""
        return None


def undisturbed(averages: Sequence[float]) -> float:
    """Return the mean seconds of a kernel from the averages over all runs so far that OpenVINO has after each run.

    The first run, and those that took more than twice as long as the median run, are left out. An average is cut to
    whole microseconds, so a single run is known to as many microseconds as there were runs, and their mean to one.
    """
    runs = np.diff(np.arange(1, len(averages) + 1) * np.array(averages))
    kept = runs <= 2 * np.median(runs) + 1e-6 * len(averages)  # microseconds, in which OpenVINO counts
    return max(0.0, float(runs[kept].mean()))


def _kind(node: ExecutedNode) -> str:
    """Return the kind of an executed node in the words of ONNX, where it is a product or rounds to integers only."""
    if node.kind in _KINDS:
        return _KINDS[node.kind]
    border = next((kind for kind in ROUNDING if node.parts and node.parts[-1].endswith(f"_{kind}")), None)
    return border or node.kind


class OpenVinoModel(OpenFile):
    """An ONNX file in memory, open in OpenVINO on the CPU.

    It is compiled for the shape of its calls, which makes it up to twice as quick as for any number of images, and
    computes in float32 where it is not int8: OpenVINO would choose 16 bits on some processors. It runs on ``threads``,
    which times are taken on; where only its outputs count, on as many as torch does.

    Raises InvalidSpec if OpenVINO cannot open it.
    """

    title = OPENVINO.file_title
    of_any_program = False

    def __init__(self, content: bytes, *, threads: int | None = None) -> None:
        self._content, self._threads = content, threads or torch.get_num_threads()
        (taken,) = read(content).inputs
        model = onnx.load_from_string(content)
        self.facts = FileFacts(
            input_name=taken.get_any_name(),
            input_shape=_shape(taken),
            input_type=np.dtype(taken.element_type.to_dtype()).name,
            outputs=tuple((each.name, ()) for each in model.graph.output),
        )
        self._chosen = tuple(name for name, _ in self.facts.outputs)
        self.nesting = next((each.value for each in model.metadata_props if each.key == OUTPUTS), None)
        self._request = lru_cache(maxsize=2)(self._compiled)  # of a batch, and of the rest that is smaller

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names; raises InvalidSpec where OpenVINO cannot compile the file for such images."""
        values = np.ascontiguousarray(fed.numpy())
        found = self._request(values.shape).infer([values], share_inputs=True)
        return {name: found[place] for place, (name, _) in enumerate(self.facts.outputs) if name in names}

    def _compiled(self, shape: tuple[int, ...]) -> Any:
        network = read(self._content)  # anew: compiling it for a shape changes it
        return compiled(network, shape, threads=self._threads).create_infer_request()


def _shape(port: Any) -> Shape:
    return tuple(size.get_length() if size.is_static else None for size in port.partial_shape)


def read(file: bytes | Path) -> Any:
    """Return the network of an ONNX file; from a path, also of a file of OpenVINO's own format.

    Raises InvalidSpec if OpenVINO cannot read it.
    """
    try:
        return _CORE.read_model(io.BytesIO(file) if isinstance(file, bytes) else file)
    except RuntimeError as error:
        raise _refused(error) from error


def compiled(network: Any, *shapes: Sequence[int], threads: int, profiled: bool = False) -> Any:
    """Return a network of :func:`read`, compiled for inputs of ``shapes`` on ``threads``; ``profiled`` takes times.

    Raises InvalidSpec if OpenVINO cannot compile it so.
    """
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # other processes time files too
        "PERF_COUNT": profiled,
    }
    try:
        network.reshape(dict(enumerate(map(list, shapes))))
        return _CORE.compile_model(network, "CPU", settings)
    except RuntimeError as error:
        raise _refused(error) from error


def _refused(error: RuntimeError) -> Exception:
    """Return what to raise: OpenVINO's message begins with lines on where in its code it was raised."""
    if is_about_memory(error):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)), None)
    told = next((line for line in lines if not line.startswith(_OWN_CODE)), "")
    return InvalidSpec(f"OpenVINO cannot open this network: {first_line_of(RuntimeError(cause or told))}.")


_OWN_CODE, _CAUSE = ("Exception from", "Check '"), "-- "


class UploadedOpenVino(UploadedRuntime, OpenVino):
    """OpenVINO on edited copies of one uploaded file."""


OPERATIONS = OpenVino()
