"""The float graph of an uploaded file that int8 files are made of, and the way back into the file.

Rounding is inserted in a plain graph: sorted, with a name for every node and constants as initializers, with norms
folded into convolutions, and with the outputs that are measured. Other nodes of the file are put back afterwards.

onnxruntime folds norms and constants into convolutions of float files only. Source: onnxruntime,
``core/optimizer/conv_bn_fusion.cc``, ``conv_add_fusion.cc`` and ``conv_mul_fusion.cc``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.networks.onnx.difference import HALF
from senseapp.networks.onnx.graph import (
    DEFAULT_DOMAINS,
    OnnxGraph,
    attributes_of,
    label,
    opset_of,
    read_by,
    tensor_in,
    tensors_in,
    unique_names,
)
from senseapp.networks.onnx.read import BY_CHANNEL_OPSET
from senseapp.runtimes.onnxruntime.rounding.qdq import ROUNDING

FOLDED_WEIGHT = ".folded_weight"
"""Behind a convolution's name, that of the weight with what was folded into it."""

Array = NDArray[np.float64]
Affine = tuple[Array, Array]
"""What a node does to each channel: times a scale, plus a shift, both (C,)."""

_AFFINE = frozenset({"BatchNormalization", "Add", "Sub", "Mul", "Div"})
_PLAIN = "Nodes of the file are sorted, each has a name of its own, and constants are stored beside the other tensors."


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatGraph:
    """An uploaded file as its int8 files begin: the ``whole`` of it, plain, with ``notes`` on how it differs.

    Its ``part`` that is measured, for images of that size, is also ``folded``: norms and constants into convolutions.
    """

    whole: bytes
    part: bytes
    folded: bytes
    notes: tuple[str, ...]

    @classmethod
    def of(cls, content: bytes, outputs: Sequence[str], input_shape: Sequence[int]) -> Self:
        """Return that of a file, of which ``outputs`` are measured on images of ``input_shape``, as the file has it.

        It has the opset of the file where ONNX cannot raise it.
        """
        raised, notes = _raised(onnx.load_from_string(content))
        graph = OnnxGraph(raised)
        before = graph.content()
        _make_plain(graph)
        part = _part(graph, outputs, input_shape)
        folded = part.copy()
        _fold(folded)
        whole = graph.content()
        notes = notes if whole == before else (*notes, _PLAIN)
        return cls(whole=whole, part=part.content(), folded=folded.content(), notes=notes)

    def put_back(self, file: bytes) -> bytes:
        """Return the whole file with the nodes of ``file``, an int8 file of the part that is measured."""
        whole, int8 = OnnxGraph(self.whole), OnnxGraph(file)
        inside = {node.name for node in OnnxGraph(self.part).nodes}
        whole.nodes = [*int8.nodes, *(node for node in whole.nodes if node.name not in inside)]
        whole.sort()
        whole.discard({name for node in int8.nodes for name in node.output} & whole.initializers.keys())
        whole.initializers |= int8.initializers
        whole.prune()
        known = {each.domain for each in whole.model.opset_import} | DEFAULT_DOMAINS
        used = {node.domain for node in whole.nodes} - known
        whole.model.opset_import.extend(each for each in int8.model.opset_import if each.domain in used)
        return whole.content()


def check_quantizable(content: bytes) -> None:
    """Raise InvalidSpec where no int8 file can be made of an uploaded one."""
    model = onnx.load_from_string(content)
    if any(each.data_type in HALF for each in tensors_in(model)):
        raise InvalidSpec("The file computes in float16. Upload the float32 file that it was made from.")
    if any(node.op_type in ROUNDING for node in model.graph.node):
        raise InvalidSpec("The file is quantized already. Upload the float file that it was made from.")
    if model.functions:
        raise InvalidSpec("The file's graph calls functions of its own. Export it with these written out.")
    fused = next((node for node in model.graph.node if node.op_type in ("FusedConv", "FusedGemm")), None)
    if fused is not None:
        raise InvalidSpec(
            f"The file was optimised by onnxruntime: {label(fused)} is a layer and its activation in one, which its "
            "quantizer does not take apart. Upload the file as it was before it was optimised."
        )
    _raised(model, required=True)


def _raised(model: ModelProto, *, required: bool = False) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model in an opset that knows a scale for each channel, and a sentence if that is another one."""
    version = opset_of(model)
    if version >= BY_CHANNEL_OPSET:
        return model, ()
    try:
        raised = version_converter.convert_version(model, BY_CHANNEL_OPSET)
    except Exception as error:  # the converter is C++, and raises errors of any kind
        if not required:
            return model, ()
        raise InvalidSpec(
            f"Weights with a scale for each channel need opset {BY_CHANNEL_OPSET}, and ONNX cannot raise the file "
            f"from opset {version}: {first_line_of(error)}."
        ) from error
    note = f"The int8 file is of opset {BY_CHANNEL_OPSET}, raised from {version} by ONNX: scales by channel need it."
    return raised, (note,)


def _make_plain(graph: OnnxGraph) -> None:
    graph.sort()
    held = {node.output[0]: each for node in graph.nodes if (each := tensor_in(node, plain=True))}
    graph.remove(*(node for node in graph.nodes if node.op_type == "Constant" and node.output[0] in held))
    for name, tensor in held.items():
        graph.store(name, numpy_helper.to_array(tensor))
    for node, name in zip(graph.nodes, unique_names(graph.nodes), strict=True):
        node.name = name


def _part(graph: OnnxGraph, outputs: Sequence[str], input_shape: Sequence[int]) -> OnnxGraph:
    """Return what computes ``outputs``; it also returns what other nodes read of it, which therefore stays as it is."""
    names = {node.name for node in graph.part(outputs).nodes}
    made = {name for node in graph.nodes if node.name in names for name in node.output if name}
    read = {name for node in graph.nodes if node.name not in names for name in read_by(node)}.union(graph.outputs)
    part = graph.part([*outputs, *sorted((made & read).difference(outputs))])
    part.take_images(part.inputs[0], input_shape)
    return OnnxGraph(onnx.shape_inference.infer_shapes(part.proto()))


def _fold(graph: OnnxGraph) -> None:
    """Let convolutions of a plain graph do what norms and constants behind them do.

    Folded are ``BatchNormalization``, and sums and products with one constant for each channel, where nothing else
    reads what comes before them. The outputs stay the same but for rounding of float32.
    """
    for node in list(graph.nodes):
        if node.op_type == "Conv" or (node.op_type == "ConvTranspose" and attributes_of(node).get("group", 1) == 1):
            _fold_behind(graph, node, channel_axis=int(node.op_type == "ConvTranspose"))
    graph.prune()


def _fold_behind(graph: OnnxGraph, node: NodeProto, channel_axis: int) -> None:
    """Fold all that follows one convolution, as far as it can be."""
    names = [name for name in node.input[1:] if name]
    numbers = [found for name in names if (found := _numbers(graph, name)) is not None]
    if len(numbers) != len(names):
        return
    weight, before = numbers[0], node.output[0]
    channels = weight.shape[channel_axis]
    bias = numbers[1] if len(numbers) > 1 else np.zeros(channels)
    shape = [-1 if axis == channel_axis else 1 for axis in range(weight.ndim)]
    while graph.is_read_once(node.output[0]):
        after = graph.readers(node.output[0])[0]
        affine = _affine(graph, after, node.output[0], channels, weight.ndim)
        if affine is None or not all(np.isfinite(each).all() for each in affine):
            break
        weight, bias = weight * affine[0].reshape(shape), bias * affine[0] + affine[1]
        node.output[0] = after.output[0]
        graph.remove(after)
    if node.output[0] != before:
        for position, (name, values) in enumerate(((FOLDED_WEIGHT, weight), (".folded_bias", bias)), 1):
            graph.store(node.name + name, values.astype(np.float32))
            graph.read_instead(node, position, node.name + name)


def _affine(graph: OnnxGraph, node: NodeProto, name: str, channels: int, rank: int) -> Affine | None:
    """Return what ``node`` does to the channels of ``name``, a tensor of ``rank`` axes; None for anything else."""
    constants = {each: _numbers(graph, each) for each in node.input if each != name}
    is_alone = list(node.input).count(name) == 1 and all(each is not None for each in constants.values())
    if node.op_type not in _AFFINE or not is_alone or attributes_of(node).get("training_mode", 0):
        return None
    shape, evaluator = (1, channels, *[1] * (rank - 2)), ReferenceEvaluator(node)
    with np.errstate(all="ignore"):  # what divides by zero is no number, and stays
        found = [evaluator.run(None, {**constants, name: np.full(shape, each)}) for each in (0.0, 1.0)]
    shift, both = (cast(list[Array], each)[0] for each in found)
    return ((both - shift).ravel(), shift.ravel()) if shift.shape == shape else None


def _numbers(graph: OnnxGraph, name: str) -> Array | None:
    found = graph.array(name)
    return None if found is None or found.dtype != np.float32 else np.asarray(found, np.float64)
