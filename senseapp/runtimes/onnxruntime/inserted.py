"""Roundings put into an uploaded file: the new nodes of its int8 copy are inserted, all else stays in place.

Rounding is inserted in a plain graph: sorted, with a name for every node and constants as initializers. It is a copy of
the part that is measured; here what changed in it is carried over to the file itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.networks.onnx.graph import DEFAULT_DOMAINS, OnnxGraph, label, opset_of, read_by, tensor_in
from senseapp.networks.onnx.read import BY_CHANNEL_OPSET

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def quantizable(content: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return an uploaded file in an opset that knows a scale for each channel, and a sentence if that is another one.

    Raises:
        InvalidSpec: no int8 file can be made of it.
    """
    model = onnx.load_from_string(content)
    _check(model)
    version = opset_of(model)
    if version >= BY_CHANNEL_OPSET:
        return content, ()
    try:
        raised = version_converter.convert_version(model, BY_CHANNEL_OPSET)
    except Exception as error:  # the converter is C++, and raises errors of any kind
        raise InvalidSpec(
            f"Weights with a scale for each channel need opset {BY_CHANNEL_OPSET}, and ONNX cannot raise the file "
            f"from opset {version}: {first_line_of(error)}."
        ) from error
    note = f"The int8 file is of opset {BY_CHANNEL_OPSET}, raised from {version} by ONNX: scales by channel need it."
    return bytes(raised.SerializeToString()), (note,)


def _check(model: ModelProto) -> None:
    tensors = [*model.graph.initializer, *(each for node in model.graph.node if (each := tensor_in(node)) is not None)]
    if any(each.data_type in _HALF for each in tensors):
        raise InvalidSpec("The file computes in float16. Upload the float32 file that it was made from.")
    if any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node):
        raise InvalidSpec("The file is quantized already. Upload the float file that it was made from.")
    if model.functions:
        raise InvalidSpec("The file's graph calls functions of its own. Export it with these written out.")
    fused = next((node for node in model.graph.node if node.op_type in ("FusedConv", "FusedGemm")), None)
    if fused is not None:
        raise InvalidSpec(
            f"The file was optimised by onnxruntime: {label(fused)} is a layer and its activation in one, which its "
            "quantizer does not take apart. Upload the file as it was before it was optimised."
        )


def plain_copy(content: bytes, outputs: Sequence[str], input_shape: Sequence[int]) -> bytes:
    """Return the part of a file that computes ``outputs`` as the quantizer and the timing of layers need it.

    It is sorted, has a name for every node, constants as initializers, and shapes for images of ``input_shape``,
    (N, C, H, W) or as the file has them, of which only the batch stays free where the file has it so.
    """
    graph = OnnxGraph(content)
    graph.sort()
    held = {node.output[0]: each for node in graph.nodes if (each := tensor_in(node) or _plain_constant(node))}
    graph.remove(*(node for node in graph.nodes if node.op_type == "Constant" and node.output[0] in held))
    for name, tensor in held.items():
        graph.store(name, numpy_helper.to_array(tensor))
    for node, name in zip(graph.nodes, node_names(graph.nodes), strict=True):
        node.name = name
    part = graph.part(outputs).proto()
    dims = part.graph.input[0].type.tensor_type.shape.dim
    is_free = dims[0].dim_value <= 0
    for dim, length in zip(dims, input_shape, strict=True):
        dim.dim_value = length
    if is_free:
        dims[0].dim_param = "batch"
    return bytes(onnx.shape_inference.infer_shapes(part).SerializeToString())


def node_names(nodes: Sequence[NodeProto]) -> list[str]:
    """Return a name of its own for each node: the file's where it is one, else that of what it computes."""
    counts = Counter(each.name for each in nodes)
    taken = {name for name, count in counts.items() if count == 1}
    found = []
    for node in nodes:
        name = node.name
        if not name or counts[name] > 1:
            name = f"{node.op_type} of {next(iter(node.output), '')}"
            while name in taken:
                name += "_"
            taken.add(name)
        found.append(name)
    return found


def _plain_constant(node: NodeProto) -> TensorProto | None:
    """Return the numbers of a Constant node that holds them as an attribute; None for text."""
    for each in node.attribute:
        kind = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
        if each.name in kind:
            return numpy_helper.from_array(np.array(helper.get_attribute_value(each), kind[each.name]))
    return None


def apply_qdq(content: bytes, plain: bytes, int8: bytes) -> bytes:
    """Return the file ``content`` with what was rounded in its ``plain`` copy.

    Args:
        content: in an opset of :func:`quantizable`.
        plain: :func:`plain_copy` of it.
        int8: a QDQ file of ``plain``, or of a copy of it with norms folded into convolutions.
    """
    base, after = OnnxGraph(content), OnnxGraph(int8)
    after.sort()
    read = {name for node in base.nodes for name in read_by(node)}
    own = {node.name: node for node in OnnxGraph(plain).nodes}
    places = {name: place for place, node in enumerate(base.nodes) for name in node.output if name}
    made_at, behind = dict(places), dict[int, list[NodeProto]]()
    for node in after.nodes:
        before = own.pop(node.name, None)
        if before is None:
            made = [made_at[name] for name in node.input if name in made_at and name not in after.initializers]
            place = max(made, default=-1)
            behind.setdefault(place, []).append(node)
        else:
            place = places[_first(before.output)]
            _rewire(base.nodes[place], before, node)
        made_at.update(dict.fromkeys(filter(None, node.output), place))
    left_out = {places[_first(node.output)] for node in own.values()}
    nodes = list(behind.get(-1, ()))
    for place, node in enumerate(base.nodes):
        nodes += [*(() if place in left_out else (node,)), *behind.get(place, ())]
    base.nodes = nodes
    base.rewired()
    _take_tensors(base, after, read, {name for some in behind.values() for node in some for name in node.output})
    known = {each.domain for each in base.model.opset_import} | DEFAULT_DOMAINS
    used = {node.domain for node in base.nodes} - known
    base.model.opset_import.extend(each for each in after.model.opset_import if each.domain in used)
    return base.content()


def _rewire(node: NodeProto, before: NodeProto, after: NodeProto) -> None:
    """Change in a node of the file what changed in its copy: names, and the input of a folded bias."""
    if len(after.input) < len(before.input) or len(after.output) != len(before.output):
        raise InvalidSpec(f"To round node “{before.name}” changes it, which cannot be done in the file.")
    for own, old, new in ((node.input, before.input, after.input), (node.output, before.output, after.output)):
        for position, (one, other) in enumerate(zip(old, new, strict=False)):
            if one != other:
                own[position] = other
        own.extend(new[len(old) :])


def _take_tensors(base: OnnxGraph, after: OnnxGraph, read_before: set[str], computed: set[str]) -> None:
    """Take over new and changed tensors; discard those that are computed now, or that nothing reads any more."""
    read = {name for node in base.nodes for name in read_by(node)}.union(base.outputs)
    stored = {*base.initializers, *(node.output[0] for node in base.nodes if node.op_type == "Constant")}
    base.discard(stored & (computed | (read_before - read)))
    for name, tensor in after.initializers.items():
        known = base.tensor(name)
        if known is None:
            if name in read and base.maker(name) is None:
                base.initializers[name] = tensor
        elif known.data_type == tensor.data_type:
            values = numpy_helper.to_array(tensor)
            if not np.array_equal(values, numpy_helper.to_array(known), equal_nan=values.dtype.kind == "f"):
                base.store(name, values)


def _first(names: Sequence[str]) -> str:
    return next(iter(filter(None, names)))
