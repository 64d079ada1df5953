"""Normalised graph of an ONNX file: ordered, named, with constants stored in one place and folded."""

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.onnx.graph import DEFAULT_DOMAINS, OnnxGraph, read_by, tensor_in, unique_names
from senseapp.networks.onnx.names import module_path
from senseapp.networks.onnx.operators import NEVER_RUN, is_read
from senseapp.networks.onnx.read import read_graph
from senseapp.networks.onnx.rewrite import fold_constants, take_branches
from senseapp.networks.onnx.torch_graph import Constant, GraphInput, Node, TorchGraph

_NUMBERS = frozenset({AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.FLOATS, AttributeProto.INTS})


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
    names = {name: name for name in (*constants, *(each.name for each in inputs), *_outputs(file.nodes))}
    nodes = _Reading(file, in_runtime=in_runtime).nodes(file.nodes, ChainMap(names))
    if any(each.op in ("QuantizeLinear", "DequantizeLinear") for each in nodes):
        notes = (*notes, "The file is quantized; it is read as float with the integers' values.")
    graph = TorchGraph(inputs=inputs, outputs=file.outputs, nodes=nodes, constants=constants, notes=notes)
    return fold_constants(take_branches(graph)), file


def _stored(nodes: Iterable[NodeProto], initializers: Iterable[TensorProto]) -> dict[str, Constant]:
    """Return the tensors of a graph by name: initializers and Constant nodes, but for text."""
    constants = {each.name: _constant(each.name, _tensor(each)) for each in initializers if _is_numeric(each)}
    for node in nodes:
        held = tensor_in(node, plain=True)
        if held is not None and _is_numeric(held):
            name, value = node.output[0], _tensor(held)
            constants[name] = Constant(value=value) if tensor_in(node) is None else _constant(name, value)
    return constants


def _outputs(nodes: Iterable[NodeProto]) -> list[str]:
    return [output for each in nodes if each.op_type != "Constant" for output in each.output if output]


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


class _Reading:
    """Reads the nodes of ``file``; with ``in_runtime`` onnxruntime computes what the table lacks."""

    def __init__(self, file: OnnxGraph, *, in_runtime: bool) -> None:
        self.version = file.opset
        self.in_runtime = in_runtime
        # With products of integers onnxruntime also computes the integers that the table reads as float.
        self.integers = any(each.op_type.startswith("QLinear") for each in file.nodes)

    def nodes(self, stored: Iterable[NodeProto], names: ChainMap[str, str], inside: str = "") -> tuple[Node, ...]:
        """Return the nodes of one graph but Constants, each with a name of its own that begins with ``inside``.

        ``names`` are what values that the nodes and their bodies may read are called here, by their own names.
        """
        computing = [each for each in stored if each.op_type != "Constant"]
        named = zip(computing, unique_names(computing), strict=True)
        return tuple(self._node(each, inside + name, names) for each, name in named)

    def _node(self, stored: NodeProto, name: str, names: ChainMap[str, str]) -> Node:
        captured = tuple(sorted(name for name in read_by(stored).difference(stored.input) if name in names))
        op = stored.op_type if stored.domain in DEFAULT_DOMAINS else f"{stored.domain}::{stored.op_type}"
        attributes = {each.name: _value_of(each) for each in stored.attribute}
        if op == "If":
            bodies = [each for each in stored.attribute if each.type == AttributeProto.GRAPH]
            attributes |= {each.name: self._body(each.g, names, f"{name}/{each.name}/") for each in bodies}
        node = Node(
            name=name,
            op=op,
            version=self.version,
            inputs=tuple(names.get(each, each) for each in (*stored.input, *captured)),
            outputs=tuple(names.get(each, each) for each in stored.output),
            attributes=attributes,
            captured=captured,
            scope=module_path({prop.key: prop.value for prop in stored.metadata_props}, stored.name),
        )
        in_integers = self.integers and op == "QuantizeLinear"
        kept = self.in_runtime and op not in NEVER_RUN and (in_integers or not is_read(node))
        return replace(node, source=stored.SerializeToString()) if kept else node

    def _body(self, graph: GraphProto, names: ChainMap[str, str], inside: str) -> TorchGraph:
        """Return a branch; branches in it are bounded by how deep messages may lie in one another, 33."""
        stored = _stored(graph.node, graph.initializer)
        names = names.new_child({name: inside + name for name in (*stored, *_outputs(graph.node))})
        constants = {
            names[name]: replace(each, initializer=names[name] if each.initializer else "")
            for name, each in stored.items()
        }
        outputs = tuple(names.get(each.name, each.name) for each in graph.output)
        return TorchGraph(inputs=(), outputs=outputs, nodes=self.nodes(graph.node, names, inside), constants=constants)
