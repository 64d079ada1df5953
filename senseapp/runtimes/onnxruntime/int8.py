"""Int8 files of one network: how it is rounded, fitted to images, and written with any of its nodes in float."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

from torch import Tensor

from senseapp.compressions.quantization import ActivationObserver
from senseapp.core.errors import UnsupportedModel
from senseapp.core.steps import StepTitle
from senseapp.core.texts import listed
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.names import module_path
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.qdq import (
    ROUNDING,
    SAME_RANGE,
    UNPACKED,
    WEIGHTED,
    QdqFiles,
    Rounding,
    rounded_tensors,
)
from senseapp.runtimes.onnxruntime.rounding.ranges import Range, calibration_warnings, causes, ranges
from senseapp.runtimes.onnxruntime.rounding.weights import LARGEST, RoundedProduct, rounded_products
from senseapp.runtimes.quantizers import Fitting, Quantizer, RoundingCause

_REDUCED_LARGEST = LARGEST // 2  # 7 bits: no pair of products with an input of 8 bits overflows 16
_BETWEEN_ROUNDINGS = frozenset({"LayerNormalization", "Gelu"})
ONLY_WEIGHTED = (
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
    """Writes one float network as QDQ ONNX, any of its nodes in float; :attr:`in_float` stay so in every file.

    Ranges are the smallest and largest values on ``calibration``, (N, C, H, W), until :attr:`rounding` is set. With
    ``any_order``, fitted weights never saturate, in whichever order a runtime multiplies. Products of two activations
    are rounded if ``in_attention``.
    """

    def __init__(
        self, network: bytes, calibration: Sequence[Tensor], *, any_order: bool = False, in_attention: bool = True
    ) -> None:
        self.network, self.any_order = network, any_order
        self.in_float = nodes_in_float(OnnxGraph(network), in_attention=in_attention)
        self.notes = (ONLY_WEIGHTED,) if self.in_float else ()
        self._calibration = calibration
        self._files: tuple[Rounding, QdqFiles] | None = None

    @cached_property
    def rounding(self) -> Rounding:
        """What files round to: the smallest and largest values, unless another one is set."""
        return Rounding(ranges=self.ranges(self._calibration, "minmax"))

    def ranges(self, batches: Sequence[Tensor], observer: ActivationObserver) -> dict[str, Range]:
        """Return the ranges of all tensors that are rounded."""
        return ranges(self.network, batches, rounded_tensors(self.network, self.in_float), observer)

    def fit(self, fitting: Fitting) -> None:
        """Fit ranges, weights and biases to images, see :func:`fitted_rounding`; where that fails, they stay."""
        with fitting.steps.trying("ranges and weights fitted to the images"):
            self.rounding = fitted_rounding(
                fitting, partial(self.ranges, fitting.batches, "mse"), partial(self._fitted, fitting)
            )
        warnings = tuple[str, ...]()
        with fitting.steps.trying("the check of the calibration images"):
            warnings = calibration_warnings(self.network, self.rounding.ranges, fitting.batches, fitting.held_out)
        self.notes = (*warnings, *self.notes)

    def _fitted(self, fitting: Fitting, ranges: Mapping[str, Range]) -> dict[str, RoundedProduct]:
        """Return weights and biases beside these ranges; nodes whose weights are made of integers keep them."""
        return rounded_products(
            self.network,
            fitting.batches,
            products(OnnxGraph(self.network)),
            ranges,
            integers=fitting.integers,
            largest=_REDUCED_LARGEST if fitting.reduce_range else LARGEST,
            any_order=self.any_order,
            progress=fitting.steps.progress,
        )

    def write(self, *, but: Collection[str] = (), weights_only: Collection[str] = ()) -> bytes:
        """Return the network with every node in int8 that can be; see :meth:`.Quantizer.write`."""
        return self._qdq().content(self.in_float.union(but), weights_only)

    def _qdq(self) -> QdqFiles:
        if self._files is None or self._files[0] is not self.rounding:
            self._files = self.rounding, QdqFiles(self.network, self.rounding)
        return self._files[1]

    def nodes(self, content: bytes) -> list[str]:
        """Return the nodes of a file that compute on int8 values, in order."""
        able = self._qdq().in_int8 - self.in_float
        return [name for name in int8_nodes(content) if name in able]

    def causes(self, nodes: Collection[str] | None = None) -> Sequence[RoundingCause]:
        """Return what speaks against one scale for a tensor; see :func:`.rounding.ranges.causes`."""
        return causes(self.network, self.rounding.ranges, self._calibration, nodes)


def fitted_rounding(
    fitting: Fitting,
    observed: Callable[[], Mapping[str, Range]],
    fitted: Callable[[Mapping[str, Range]], Mapping[str, RoundedProduct]],
) -> Rounding:
    """Return how to round a network: ranges of least squared error, and the weights and biases that go with them.

    On other images, the smallest and largest values did .91 to 1.47 times the damage of such ranges (six networks).
    Those that clip more (percentiles, entropy) suit few images better than others.

    ``observed`` returns the ranges of all tensors that are rounded, ``fitted`` weights and biases by node beside them;
    weights that cannot be fitted are rounded to the nearest.
    """
    fitting.steps.progress.begin(StepTitle.WEIGHTS)
    fitting.steps.progress("Finding the ranges of activations")
    ranges, products = observed(), dict[str, RoundedProduct]()
    with fitting.steps.trying("weights fitted to the images"):
        products |= fitted(ranges)
    return Rounding(ranges=ranges, products=products)


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

    Raises UnsupportedModel if they are operators of integers, which have no form in float here.
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
    for node in OnnxGraph(network).nodes:
        scope = module_path({entry.key: entry.value for entry in node.metadata_props}, node.name)
        owners = (*(name.rpartition(".")[0] for name in node.input), scope)
        if (owner := next((each for each in owners if each in layers), None)) is not None:
            found[node.name] = owner
    return found


_RECIPE_README = """\
Nodes that stay in float, for quantizers of the float ONNX file of the same network. Names are those of that file.

import json
from onnxruntime.quantization import QuantType, quantize, quantize_static
excluded = json.load(open("nodes_to_exclude.json"))

onnxruntime:
quantize_static("float.onnx", "int8.onnx", reader, per_channel=True, nodes_to_exclude=excluded)

NNCF, on the ONNX file:
import nncf
nncf.quantize(model, dataset, ignored_scope=nncf.IgnoredScope(**json.load(open("nncf_ignored_scope.json"))))

Qualcomm NPU (QNN), where these products compute with activations of 16 bits, as its integer units know no float:
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
overrides = json.load(open("qnn_tensor_quant_overrides.json"))
for tensor in overrides.values():
    tensor[0]["quant_type"] = QuantType[tensor[0]["quant_type"]]
quantize("float.onnx", "qnn.onnx", get_qnn_qdq_config("float.onnx", reader, init_overrides=overrides))
"""


def recipes_of(content: bytes) -> dict[str, str]:
    """Return the nodes in float of a QDQ file in the words of onnxruntime's quantizer, NNCF and Qualcomm's NPU.

    Texts are by name of file. Nodes without a name, and those that only move values, are left out.
    """
    graph, in_int8 = OnnxGraph(content), set(int8_nodes(content))
    in_float = [
        node
        for node in graph.nodes
        if node.name
        and node.name not in in_int8
        and node.op_type not in {*ROUNDING, *SAME_RANGE, "Constant"}
        and not node.name.removesuffix(".cast").endswith(UNPACKED)  # it makes a stored weight float
    ]
    excluded = [node.name for node in in_float]
    weighted = [node.output[0] for node in in_float if node.op_type in WEIGHTED]
    found = {
        "nodes_to_exclude.json": excluded,
        "nncf_ignored_scope.json": {"names": excluded},
        "qnn_tensor_quant_overrides.json": {name: [{"quant_type": "QUInt16"}] for name in weighted},
    }
    return {name: json.dumps(each, indent=1) for name, each in found.items()} | {"RECIPE.txt": _RECIPE_README}
