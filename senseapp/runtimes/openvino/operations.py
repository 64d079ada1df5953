"""OpenVINO as a :class:`~senseapp.runtimes.base.Runtime`: it runs the ONNX files that are written for onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import numpy_helper
from torch import Tensor

from senseapp.core.texts import plural
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.runtimes.base import Runtime
from senseapp.runtimes.file_format import FileFormat
from senseapp.runtimes.onnx_network import OnnxSession, saturates
from senseapp.runtimes.onnxruntime.bench import Profiler
from senseapp.runtimes.onnxruntime.file_format import OnnxFormat
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OnnxRuntime
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.runtimes.openvino import OPENVINO
from senseapp.runtimes.openvino.profile import PROFILER
from senseapp.runtimes.openvino.runtime import OpenVinoModel, machine
from senseapp.runtimes.quantizers import DefaultInt8, Fitting

_PRODUCTS_IN_FLOAT = (
    "In float: {count} of two activations, as of attention. On processors without VNNI OpenVINO's int8 kernels for "
    "them saturate."
)
_PRODUCTS_ELSEWHERE = (
    "For processors without VNNI make the file on one of them: OpenVINO's int8 kernels for {count} of two activations, "
    "as of attention, saturate there."
)


class OpenVino(OnnxRuntime):
    """OpenVINO on the processor of this machine.

    Its files are ONNX, in int8 with QuantizeLinear and DequantizeLinear, which onnxruntime's quantizer writes and
    OpenVINO computes with int8 kernels of its own. What is left in float is chosen by answers and times in OpenVINO.
    """

    description = OPENVINO
    file_format: FileFormat = OnnxFormat(OPENVINO.name)
    int8_note = (
        "Weights of convolutions and matrix products are chosen so that sums of their products with 8 bits fit in 16, "
        "so OpenVINO computes these alike on processors without VNNI. It does not round what a convolution adds to "
        "another tensor, which onnxruntime does."
    )
    remedy_note = ""

    def _file(self, content: bytes, *, threads: int | None = None) -> OnnxSession:
        """Return a file that takes what it declares."""
        return OpenVinoModel(content, threads=threads)

    def _writer(self, content: bytes, calibration: Sequence[Tensor], **settings: Any) -> Int8Writer:
        """Return what writes a file in int8 on which OpenVINO's kernels do not saturate once weights are fitted."""
        saturate, products = self._saturates, _products_of_activations(content)
        kept = {*products, *products.values()} if saturate else set()
        in_float = {*kept, *_idle_pads(content), *_reading_computed_constants(content)}
        writer = Int8Writer(content, calibration, any_order=True, in_float=in_float, **settings)
        if products:
            note = _PRODUCTS_IN_FLOAT if saturate else _PRODUCTS_ELSEWHERE
            writer.notes = (note.format(count=plural(len(products), "product")),)
        return writer

    @property
    def _saturates(self) -> bool:
        """Whether sums of products of 8 bits saturate here."""
        return saturates(OpenVinoModel)

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

    def default_int8(self, content: bytes, fitting: Fitting) -> DefaultInt8 | None:
        """Return None: OpenVINO's quantizer (NNCF) is a package of its own."""
        return None


def _idle_pads(content: bytes) -> set[str]:
    """Return the nodes that pad nothing, as Swin's do for images of whole windows.

    OpenVINO removes them, and its compiler, version 2026.4.1, crashes on the roundings that are left around.
    """
    graph = onnx.load_from_string(content).graph
    constants = {each.name: each for each in graph.initializer}
    pads = {node.name: constants.get(node.input[1]) for node in graph.node if node.op_type == "Pad"}
    return {name for name, sizes in pads.items() if sizes is not None and not numpy_helper.to_array(sizes).any()}


def _reading_computed_constants(content: bytes) -> set[str]:
    """Return the additions of what other nodes compute of constants alone, as of Swin's masks, and those nodes.

    OpenVINO, version 2026.4.1, cannot open a file in which such an addition is in int8.
    """
    graph = onnx.load_from_string(content).graph
    known, computed, found = {each.name for each in graph.initializer}, set[str](), set[str]()
    for node in graph.node:
        given = {name for name in node.input if name}
        if not given:
            known.update(node.output)  # a constant
        elif given <= known | computed:
            computed.update(node.output)
            found.add(node.name)
        elif node.op_type == "Add" and given & computed:
            found.add(node.name)
    return found


def _products_of_activations(content: bytes) -> dict[str, str]:
    """Return the products of two activations, as of attention, each with the node that makes one of them.

    Sums of two of their products of 8 bits exceed 16. Where both nodes are in float, OpenVINO gets one factor that is
    not rounded, and computes in float.
    """
    graph = onnx.load_from_string(content).graph
    constants = {each.name for each in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    found = {}
    for node in graph.node:
        if node.op_type == "MatMul" and constants.isdisjoint(node.input):
            both = [makers[name] for name in node.input if name in makers]
            cheap = [maker for maker in both if constants.isdisjoint(maker.input[1:2])]
            found[node.name] = next((maker.name for maker in (*cheap, *both)), node.name)
    return found


class UploadedOpenVino(UploadedRuntime, OpenVino):
    """OpenVINO on edited copies of one uploaded file."""


OPERATIONS = OpenVino()
