"""Normalised graph of an ONNX file: ordered, named, with constants stored in one place and folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.graph import DEFAULT_DOMAINS, OnnxGraph, read_by
from senseapp.networks.onnx.names import module_path
from senseapp.networks.onnx.operators import NEVER_RUN, entry_of
from senseapp.networks.onnx.read import read_graph
from senseapp.networks.onnx.rewrite import read
from senseapp.networks.onnx.rewrite.attention import split_attention
from senseapp.networks.onnx.torch_graph import Body, Constant, GraphInput, Node, TorchGraph


def normalise(content: bytes, *, in_runtime: bool = False) -> tuple[TorchGraph, OnnxGraph]:
    """Return the graph of the file ``content``, and that of the file as onnxruntime can run it: ordered, in float32.

    With ``in_runtime``, nodes that the operator table lacks keep their own bytes, for onnxruntime to compute them.

    Raises:
        InvalidCheckpoint: not an ONNX model, or one that cannot be trusted.
        UnsupportedModel: it needs something that is not read; the message names the node.
    """
    file, notes = read_graph(content, in_runtime=in_runtime)
    constants = _stored(file.nodes, file.initializers.values())
    inputs = tuple(_input(each) for each in file.model.graph.input if each.name not in constants)
    outputs = {output for each in file.nodes for output in each.output if output}
    known = outputs.union(constants, (each.name for each in inputs))
    reading = NodeReading(
        version=file.opset,
        in_runtime=in_runtime,
        integers=any(each.op_type.startswith("QLinear") for each in file.nodes),
    )
    nodes = _written_out(_named(file.nodes, reading, known), reading, constants)
    if any(each.op in ("QuantizeLinear", "DequantizeLinear") for each in nodes):
        notes = (*notes, "The file is quantized; it is read as float with the integers' values.")
    graph = TorchGraph(
        inputs=inputs,
        outputs=tuple(each.name for each in file.model.graph.output),
        nodes=nodes,
        constants=constants,
        notes=notes,
    )
    return read(graph), file


def _stored(nodes: Iterable[NodeProto], initializers: Iterable[TensorProto]) -> dict[str, Constant]:
    """Return the tensors of a graph by name: initializers and Constant nodes, but for text."""
    constants = {each.name: _constant(each.name, each) for each in initializers if _is_numeric(each)}
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            value = _constant_of(node)
            if value is not None:
                constants[node.output[0]] = value
    return constants


def _is_numeric(tensor: TensorProto) -> bool:
    return tensor.data_type not in (TensorProto.STRING, TensorProto.UNDEFINED)


def _constant_of(node: NodeProto) -> Constant | None:
    name = node.output[0]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and _is_numeric(attribute.t):
            return _constant(name, attribute.t)
        if attribute.name in ("value_int", "value_ints"):
            return Constant(value=torch.tensor(_value_of(attribute), dtype=torch.int64))
        if attribute.name in ("value_float", "value_floats"):
            return Constant(value=torch.tensor(_value_of(attribute), dtype=torch.float32))
    return None


def _constant(name: str, tensor: TensorProto) -> Constant:
    return Constant(value=_tensor(tensor), initializer=name, order=tuple(range(len(tensor.dims))), weight=True)


def _tensor(tensor: TensorProto) -> Tensor:
    try:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind not in "fiub":  # types of ml_dtypes: float8, int4 and others
            array = array.astype("float32" if "float" in str(array.dtype) else "int8")
        return torch.from_numpy(array.copy())
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpoint(f"The numbers of “{tensor.name}” in the file are incomplete or damaged.") from error


def _input(value: onnx.ValueInfoProto) -> GraphInput:
    declared = value.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in declared.shape.dim
    )
    return GraphInput(name=value.name, shape=shape, element_type=declared.elem_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """How nodes are read.

    Attributes:
        version: of the default domain.
        in_runtime: whether onnxruntime computes what the table lacks.
        integers: whether it computes with integers, which the table reads as float.
    """

    version: int
    in_runtime: bool
    integers: bool = False

    def source(self, node: NodeProto, op: str) -> bytes:
        """Return the bytes of a node that onnxruntime computes; empty for others."""
        read = entry_of(op, self.version) is not None and not (self.integers and op == "QuantizeLinear")
        kept = self.in_runtime and not read and op not in NEVER_RUN
        return node.SerializeToString() if kept else b""


def _named(stored: Iterable[NodeProto], reading: NodeReading, known: set[str]) -> tuple[Node, ...]:
    """Return the nodes but Constants, each with a name of its own: the file's, else its operator and a number.

    Args:
        stored: of one graph, in its order.
        reading: how they are read.
        known: values that the nodes' bodies may read from outside.
    """
    taken: set[str] = set()
    counters: dict[str, int] = {}
    nodes = []
    for each in stored:
        if each.op_type == "Constant":
            continue
        wanted = each.name or each.op_type
        name = each.name
        while not name or name in taken:
            counters[wanted] = counters.get(wanted, 0) + 1
            name = f"{wanted}_{counters[wanted]}"
        taken.add(name)
        captured = tuple(sorted(read_by(each).difference(each.input) & known))
        op = each.op_type if each.domain in DEFAULT_DOMAINS else f"{each.domain}::{each.op_type}"
        nodes.append(
            Node(
                name=name,
                op=op,
                version=reading.version,
                inputs=(*each.input, *captured),
                outputs=tuple(each.output),
                attributes=_attributes(each, reading, known),
                source=reading.source(each, op),
                captured=captured,
                scope=module_path({prop.key: prop.value for prop in each.metadata_props}, each.name),
            )
        )
    return tuple(nodes)


def _written_out(nodes: Iterable[Node], reading: NodeReading, constants: dict[str, Constant]) -> tuple[Node, ...]:
    """Return the nodes, and in place of those that do several steps their parts; adds constants that these read."""
    found: list[Node] = []
    for node in nodes:
        parts, numbers = split_attention(node, in_runtime=reading.in_runtime)
        found += parts
        constants |= numbers
    return tuple(found)


def _attributes(node: NodeProto, reading: NodeReading, known: set[str]) -> dict[str, Any]:
    found = {each.name: _value_of(each) for each in node.attribute}
    if node.op_type == "If":
        bodies = {each.name: each.g for each in node.attribute if each.type == AttributeProto.GRAPH}
        found.update({name: _body(graph, reading, known) for name, graph in bodies.items()})
    return found


def _body(graph: GraphProto, reading: NodeReading, known: set[str]) -> Body:
    """Return a branch; branches in it are bounded by how deep messages may lie in one another, 33."""
    constants = _stored(graph.node, graph.initializer)
    outputs = {output for each in graph.node for output in each.output if output}
    nodes = _named(graph.node, reading, known.union(constants, outputs))
    return Body(
        nodes=_written_out(nodes, reading, constants),
        constants=constants,
        outputs=tuple(each.name for each in graph.output),
    )


def _value_of(attribute: AttributeProto) -> Any:
    match attribute.type:
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return attribute.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return _tensor(attribute.t) if _is_numeric(attribute.t) else None
        case AttributeProto.FLOATS:
            return list(attribute.floats)
        case AttributeProto.INTS:
            return list(attribute.ints)
        case AttributeProto.STRINGS:
            return [each.decode("utf-8", "replace") for each in attribute.strings]
    return None  # bodies: only those of If are read
