"""Int8 files of one network: how it is rounded, written with any of its nodes in float."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

import onnx
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.core.texts import listed
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.runtimes.onnxruntime.file_writer import ROUNDING, UNPACKED
from senseapp.runtimes.onnxruntime.qdq import WEIGHTED, QdqFiles, Rounding, rounded_tensors
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection
from senseapp.runtimes.onnxruntime.rounding.causes import causes
from senseapp.runtimes.onnxruntime.rounding.ranges import ranges
from senseapp.runtimes.quantizers import Quantizer, RoundingCause

_SCOPES = "pkg.torch.onnx.name_scopes"
_BETWEEN_ROUNDINGS = frozenset({"LayerNormalization", "Gelu"})
_ONLY_WEIGHTED = (
    "Only convolutions and matrix products with weights compute in int8: to round what lies between them too (layer "
    "norms, softmax, GELU, additions) was measured to do more harm, and to take no less time."
)
_OPERATORS_OF_INTEGERS = frozenset(
    {
        *("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"),
    }
)


class Int8Writer(Quantizer):
    """Writes one float network as QDQ ONNX, any of its nodes in float.

    Args:
        network: plain, in float.
        calibration: batches (N, C, H, W), whose smallest and largest values are the ranges until :attr:`rounding` is
            set.
        any_order: asks of a rounding that its weights never saturate, in whichever order a runtime multiplies.
        in_attention: whether products of two activations are rounded.

    Attributes:
        in_float: nodes that stay so in every file, see :func:`nodes_in_float`.
        correction: of the biases of :meth:`finished` files, if any.
    """

    def __init__(
        self, network: bytes, calibration: Sequence[Tensor], *, any_order: bool = False, in_attention: bool = True
    ) -> None:
        self.network, self.any_order = network, any_order
        self.in_float = nodes_in_float(OnnxGraph(network), in_attention=in_attention)
        self.notes = (_ONLY_WEIGHTED,) if self.in_float else ()
        self.correction: BiasCorrection | None = None
        self._calibration = calibration
        self._rounding: Rounding | None = None
        self._files: QdqFiles | None = None
        self._finished: dict[bytes, bytes] = {}

    @property
    def rounding(self) -> Rounding:
        """What files round to; None sets it to the smallest and largest values."""
        if self._rounding is None:
            tensors = rounded_tensors(self.network, self.in_float)
            self._rounding = Rounding(ranges=ranges(self.network, self._calibration, tensors, ["minmax"])["minmax"])
        return self._rounding

    @rounding.setter
    def rounding(self, rounding: Rounding | None) -> None:
        self._rounding, self._files = rounding, None

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be; see :meth:`.Quantizer.write`."""
        return self._qdq().content(self.in_float.union(but), weights_only)

    def _qdq(self) -> QdqFiles:
        if self._files is None:
            self._files = QdqFiles(self.network, self.rounding)
        return self._files

    def finished(self, content: bytes) -> bytes:
        """Return a file with corrected biases, where there is a :attr:`correction`."""
        if self.correction is None:
            return content
        if content not in self._finished:
            self._finished = {content: self.correction.corrected(content)}  # the last one is asked for several times
        return self._finished[content]

    def nodes(self, content: bytes) -> list[str]:
        """Return the nodes of a file that compute on int8 values, in order."""
        able = self._qdq().in_int8 - self.in_float
        return [name for name in int8_nodes(content) if name in able]

    def causes(self, nodes: Collection[str] | None = None) -> Sequence[RoundingCause]:
        """Return what speaks against one scale for a tensor; see :func:`.rounding.causes.causes`."""
        return causes(self.network, self.rounding.ranges, self._calibration, nodes)


def nodes_in_float(graph: OnnxGraph, *, in_attention: bool) -> frozenset[str]:
    """Return the nodes without weights of a network with layer norms or GELU; without ``in_attention`` with attention.

    Such a network adds to one tensor all along, which would be rounded each time, and its norms and GELU compute in
    float between roundings. To round products with weights only did .11, .72 and .76 times the damage, in .63, .99 and
    1.03 times the time (ViT, Swin, ConvNeXt with random weights).
    """
    weighted = {node.name for node in graph.nodes if node.op_type in WEIGHTED and node.input[1] in graph.initializers}
    kinds = {node.op_type for node in graph.nodes if node.name not in weighted}
    found = kinds & (_BETWEEN_ROUNDINGS if in_attention else _BETWEEN_ROUNDINGS | {"MatMul"})
    return frozenset(node.name for node in graph.nodes if found and node.name not in weighted)


def int8_nodes(content: bytes) -> list[str]:
    """Return the names of the nodes of a QDQ file that compute on int8 values, weights included, in order."""
    graph = OnnxGraph(content)
    dequantized = {node.output[0] for node in graph.nodes if node.op_type == ROUNDING[1]}
    real = {name for name, each in graph.initializers.items() if len(each.dims) > 1 and each.data_type == 1}
    real |= {name for node in graph.nodes for name in node.output if name.endswith(UNPACKED)}
    return [
        node.name
        for node in graph.nodes
        if node.op_type not in ROUNDING and dequantized & set(node.input) and not real & set(node.input)
    ]


def multiplies_integers(content: bytes) -> bool:
    """Return whether nodes of a file compute on int8 values.

    Raises:
        UnsupportedModel: they are operators of integers, which have no form in float here.
    """
    used = {node.op_type for node in OnnxGraph(content).nodes} & _OPERATORS_OF_INTEGERS
    if used:
        raise UnsupportedModel(
            f"What it does there is not known, as it holds operators of integers ({listed(sorted(used))}): run it "
            "there, or quantize in the QDQ format."
        )
    return bool(int8_nodes(content))


def layers_of_nodes(network: bytes, layers: Collection[str]) -> dict[str, str]:
    """Return the layer, one of ``layers``, that each node of a network exported by torch belongs to, where one does.

    A node's weight is called as in the network, also where a norm was folded into it; the weight of a linear layer is
    turned and renamed, and the scopes of the node say where it comes from.
    """
    found = {}
    for node in onnx.load_from_string(network).graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
        owners = [name.rpartition(".")[0] for name in node.input]
        for candidate in (*owners, *reversed(ast.literal_eval(scopes))):
            if candidate in layers:
                found[node.name] = candidate
                break
    return found
