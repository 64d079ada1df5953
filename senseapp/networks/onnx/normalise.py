"""Normalised graph of an ONNX file: ordered, named, with constants stored in one place and folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.graph import OnnxGraph, read_by
from senseapp.networks.onnx.names import module_path
from senseapp.networks.onnx.read import read_graph
from senseapp.networks.onnx.rewrite.folding import fold_constants
from senseapp.networks.onnx.torch_graph import Constant, GraphInput, Node, TorchGraph

_NUMBERS = frozenset({AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.FLOATS, AttributeProto.INTS})
_PLAIN = {"value_int": torch.int64, "value_ints": torch.int64, "value_float": torch.float32}
_PLAIN |= {"value_floats": torch.float32}


def normalise(content: bytes) -> tuple[TorchGraph, OnnxGraph]:
    """Return the graph of the file ``content``, and that of the file as onnxruntime can run it: ordered, in float32.

    Raises:
        InvalidCheckpoint: not an ONNX model, or one that cannot be trusted.
        UnsupportedModel: it needs something that is not read; the message names the node.
    """
    file, notes = read_graph(content)
    constants = _stored(file.nodes, file.initializers.values())
    inputs = tuple(_input(each) for each in file.model.graph.input if each.name not in constants)
    nodes = _nodes(file)
    if any(each.op in ("QuantizeLinear", "DequantizeLinear") for each in nodes):
        notes = (*notes, "The file is quantized; it is read as float with the integers' values.")
    graph = TorchGraph(inputs=inputs, outputs=file.outputs, nodes=nodes, constants=constants, notes=notes)
    return fold_constants(graph), file


def _stored(nodes: Iterable[NodeProto], initializers: Iterable[TensorProto]) -> dict[str, Constant]:
    """Return the tensors of a graph by name: initializers and Constant nodes, but for text."""
    constants = {each.name: _constant(each.name, _tensor(each)) for each in initializers if _is_numeric(each)}
    for node in nodes:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            value = _value_of(attribute)
            if isinstance(value, Tensor):
                constants[node.output[0]] = _constant(node.output[0], value)
            elif attribute.name in _PLAIN:
                constants[node.output[0]] = Constant(value=torch.tensor(value, dtype=_PLAIN[attribute.name]))
    return constants


def _is_numeric(tensor: TensorProto) -> bool:
    return tensor.data_type not in (TensorProto.STRING, TensorProto.UNDEFINED)


def _constant(name: str, value: Tensor) -> Constant:
    return Constant(value=value, initializer=name, order=tuple(range(value.ndim)), weight=True)


def _tensor(tensor: TensorProto) -> Tensor:
    try:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind not in "fiub":  # types of ml_dtypes: float8, int4 and others
            array = array.astype("float32" if "float" in str(array.dtype) else "int8")
        return torch.from_numpy(array.copy())
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpoint(f"The numbers of “{tensor.name}” in the file are incomplete or damaged.") from error


def _value_of(attribute: AttributeProto) -> Any:
    """Return numbers, text or a tensor; None for others."""
    if attribute.type in _NUMBERS:
        return helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if attribute.type == AttributeProto.STRINGS:
        return [each.decode("utf-8", "replace") for each in attribute.strings]
    is_tensor = attribute.type == AttributeProto.TENSOR and _is_numeric(attribute.t)
    return _tensor(attribute.t) if is_tensor else None


def _input(value: ValueInfoProto) -> GraphInput:
    declared = value.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in declared.shape.dim
    )
    return GraphInput(name=value.name, shape=shape, element_type=declared.elem_type)


def _nodes(file: OnnxGraph) -> tuple[Node, ...]:
    """Return the nodes but Constants, each with a name of its own."""
    taken, counters = set[str](), Counter[str]()
    nodes: list[Node] = []
    for each in file.nodes:
        if each.op_type == "Constant":
            continue
        name, wanted = each.name, each.name or each.op_type
        while not name or name in taken:
            counters[wanted] += 1
            name = f"{wanted}_{counters[wanted]}"
        taken.add(name)
        read_inside = sorted(read_by(each).difference(each.input))  # by its bodies
        nodes.append(
            Node(
                name=name,
                op=each.op_type,
                version=file.opset,
                inputs=(*each.input, *read_inside),
                outputs=tuple(each.output),
                attributes={attribute.name: _value_of(attribute) for attribute in each.attribute},
                scope=module_path({entry.key: entry.value for entry in each.metadata_props}, each.name),
            )
        )
    return tuple(nodes)
