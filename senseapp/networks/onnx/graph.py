"""The graph of an ONNX file, to be read and changed in place: nodes, stored tensors, makers and readers of values.

All code that changes or searches an ONNX file works on :class:`OnnxGraph`; protobuf messages are its nodes and tensors.
Parts that nobody changes (metadata, documentation, declarations, functions) are kept as they were read.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from senseapp.core.errors import InvalidCheckpoint

DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})
Array = NDArray[Any]


class OnnxGraph:
    """A mutable graph of an ONNX model.

    Nodes keep their identity while they are in :attr:`nodes`: compare them with ``is``. Names of values are unique in
    a valid graph. Makers and readers are found anew after each change that a method of this class makes; whoever writes
    names into a node directly calls :meth:`rewired` afterwards.

    :attr:`model` is the rest of the model, whose graph has no nodes and no initializers here.
    """

    def __init__(self, model: bytes | ModelProto) -> None:
        """Read the bytes of a file, or copy a model."""
        if isinstance(model, ModelProto):
            self.model = ModelProto()
            self.model.CopyFrom(model)
        else:
            self.model = onnx.load_from_string(model)
        graph = self.model.graph
        self.nodes: list[NodeProto] = list(graph.node)
        self.initializers: dict[str, TensorProto] = {each.name: each for each in graph.initializer}
        del graph.node[:], graph.initializer[:]
        self._makers: dict[str, NodeProto] | None = None
        self._readers: dict[str, list[NodeProto]] = {}

    # What is in the graph

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what is fed; stored tensors that older files list among the inputs are left out."""
        return tuple(each.name for each in self.model.graph.input if each.name not in self.initializers)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(each.name for each in self.model.graph.output)

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return opset_of(self.model)

    def maker(self, value: str) -> NodeProto | None:
        """Return the node that computes a value; None for inputs and initializers."""
        return self._index()[0].get(value)

    def readers(self, value: str) -> Sequence[NodeProto]:
        """Return the nodes that read a value, also those whose bodies (If, Loop, Scan) do, each once."""
        return self._index()[1].get(value, ())

    def is_read_once(self, value: str) -> bool:
        """Return whether one input of one node is all that reads a value."""
        readers = self.readers(value)
        return len(readers) == 1 and list(readers[0].input).count(value) == 1 and value not in self.outputs

    def tensor(self, value: str) -> TensorProto | None:
        """Return the stored tensor of this name: an initializer, or the tensor of a Constant node."""
        found = self.initializers.get(value)
        maker = self.maker(value) if found is None else None
        return found if maker is None else tensor_in(maker)

    def tensors(self) -> dict[str, TensorProto]:
        """Return all stored tensors by name, those of Constant nodes included."""
        held = {node.output[0]: tensor for node in self.nodes if (tensor := tensor_in(node)) is not None}
        return {**self.initializers, **held}

    def origin(self, value: str, through: Container[str] = ("Identity",)) -> str:
        """Return the value whose numbers these operators, and others of them before, pass on as their first input."""
        for _ in self.nodes:  # and not for ever, where they run in a circle
            maker = self.maker(value)
            if maker is None or maker.op_type not in through or not maker.input:
                break
            value = maker.input[0]
        return value

    def array(self, value: str) -> Array | None:
        """Return the numbers of a stored tensor, also behind Identity; None for other values."""
        found = self.tensor(self.origin(value))
        return None if found is None else np.array(onnx.numpy_helper.to_array(found))

    def fresh(self, wanted: str) -> str:
        """Return ``wanted``, or with a number behind it where a value has that name."""
        taken = {*self._index()[0], *self.initializers, *self.inputs}
        names = chain([wanted], (f"{wanted}.{number}" for number in count(1)))
        return next(name for name in names if name not in taken)

    # Changes

    def rewired(self) -> None:
        """Forget makers and readers, after names in nodes or :attr:`nodes` itself were changed directly."""
        self._makers = None

    def store(self, name: str, values: Array) -> None:
        """Store numbers under a name: in the place of the tensor of that name where there is one, else as a new one."""
        tensor = self.tensor(name)
        if tensor is None:
            self.initializers[name] = onnx.numpy_helper.from_array(values, name)
            return
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        for declared in (each for each in self.model.graph.input if each.name == name):  # as older files have it
            for dim, length in zip(declared.type.tensor_type.shape.dim, values.shape, strict=True):
                dim.dim_value = length

    def read_instead(self, node: NodeProto, position: int, value: str) -> None:
        """Let an input of a node read another value."""
        node.input.extend([""] * (position + 1 - len(node.input)))
        node.input[position] = value
        self.rewired()

    def insert(self, *nodes: NodeProto, after: NodeProto | None = None) -> None:
        """Insert nodes behind ``after``; without it before all others."""
        place = 0 if after is None else [id(each) for each in self.nodes].index(id(after)) + 1
        self.nodes[place:place] = nodes
        self.rewired()

    def remove(self, *nodes: NodeProto) -> None:
        """Remove nodes; values that they computed are then without a maker."""
        gone = {id(each) for each in nodes}
        self.nodes = [each for each in self.nodes if id(each) not in gone]
        self.rewired()

    def discard(self, names: Iterable[str]) -> None:
        """Remove stored tensors, also where older files list them among the inputs, and Constant nodes."""
        gone = set(names)
        self.initializers = {name: each for name, each in self.initializers.items() if name not in gone}
        self.nodes = [each for each in self.nodes if each.op_type != "Constant" or each.output[0] not in gone]
        _keep(self.model.graph.input, {each.name for each in self.model.graph.input} - gone)
        self.rewired()

    def prune(self) -> None:
        """Remove nodes and stored tensors that no output depends on, and declarations of what is gone."""
        wanted, kept = set(self.outputs), list[NodeProto]()
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.output):
                kept.append(node)
                wanted.update(read_by(node))
        self.nodes = kept[::-1]
        self.discard(self.initializers.keys() - wanted)
        _keep(self.model.graph.value_info, {*self.initializers, *(name for node in kept for name in node.output)})

    def return_values(self, values: Iterable[str]) -> None:
        """Make these values, of any node, the outputs."""
        declared = {each.name: each for each in (*self.model.graph.value_info, *self.model.graph.output)}
        outputs = [declared.get(name, ValueInfoProto(name=name)) for name in values]
        del self.model.graph.output[:]
        self.model.graph.output.extend(outputs)

    def take_images(self, name: str, shape: Sequence[int]) -> None:
        """Declare the lengths of an input; a free number of images stays free."""
        taken = next(each for each in self.model.graph.input if each.name == name)
        first, *others = taken.type.tensor_type.shape.dim
        if first.dim_value > 0:
            first.dim_value = shape[0]
        else:
            first.dim_param = "batch"
        for dim, length in zip(others, shape[1:], strict=True):
            dim.dim_value = length

    def sort(self) -> None:
        """Put the nodes in topological order; they stay where they are in one.

        Raises InvalidCheckpoint where two nodes compute one value, or the graph is a circle.
        """
        makers: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for output in filter(None, node.output):
                if makers.setdefault(output, index) != index:
                    raise InvalidCheckpoint(f"Two nodes compute “{output}”; in a graph each value is computed once.")
        before = [sorted(makers[name] for name in makers.keys() & read_by(node)) for node in self.nodes]
        try:
            order = list(TopologicalSorter(dict(enumerate(before))).static_order())
        except CycleError as error:
            stuck = label(self.nodes[error.args[1][0]])
            raise InvalidCheckpoint(f"The graph runs in a circle through {stuck}; it can never be computed.") from error
        if any(each and index <= each[-1] for index, each in enumerate(before)):
            self.nodes = [self.nodes[index] for index in order]

    # What is made of it

    def copy(self) -> OnnxGraph:
        """Return a graph of its own that is equal."""
        return OnnxGraph(self.proto())

    def part(self, outputs: Sequence[str]) -> OnnxGraph:
        """Return the part that computes ``outputs``, any values, from the inputs that these depend on.

        It shares nodes and tensors with this graph, and declares no values between nodes.
        """
        found = OnnxGraph(ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import))
        found.nodes, found.initializers = list(self.nodes), dict(self.initializers)
        graph = found.model.graph
        graph.name = self.model.graph.name
        graph.input.extend(each for each in self.model.graph.input if each.name not in self.initializers)
        graph.output.extend(self.model.graph.output)
        found.return_values(outputs)
        found.prune()
        _keep(graph.input, set(outputs).union(*map(read_by, found.nodes)))
        declared = {each.domain for each in found.model.opset_import}
        for domain in sorted({node.domain for node in found.nodes} - declared - DEFAULT_DOMAINS):
            found.model.opset_import.add(domain=domain, version=1)  # some writers leave it out
        return found

    def proto(self) -> ModelProto:
        """Return the whole model, in memory of its own."""
        model = ModelProto()
        model.CopyFrom(self.model)
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.initializers.values())
        return model

    def content(self) -> bytes:
        """Return the bytes of the file."""
        return bytes(self.proto().SerializeToString())

    def _index(self) -> tuple[Mapping[str, NodeProto], Mapping[str, list[NodeProto]]]:
        if self._makers is None:
            self._makers, self._readers = {}, {}
            for node in self.nodes:
                self._makers.update((name, node) for name in node.output if name)
                for name in read_by(node):
                    self._readers.setdefault(name, []).append(node)
        return self._makers, self._readers


def _keep(messages: Any, names: Container[str]) -> None:
    """Leave out all but those of these names."""
    kept = [each for each in messages if each.name in names]
    del messages[:]
    messages.extend(kept)


def opset_of(model: ModelProto) -> int:
    """Return the version of the default domain."""
    return max((each.version for each in model.opset_import if each.domain in DEFAULT_DOMAINS), default=0)


_PLAIN = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}


def tensor_in(node: NodeProto, *, plain: bool = False) -> TensorProto | None:
    """Return the tensor that a Constant node holds, with ``plain`` also of plain numbers; None for other nodes."""
    for each in node.attribute if node.op_type == "Constant" and node.output else ():
        if each.type == AttributeProto.TENSOR:
            tensor: TensorProto = each.t
            return tensor
        if plain and each.name in _PLAIN:
            return onnx.numpy_helper.from_array(np.array(onnx.helper.get_attribute_value(each), _PLAIN[each.name]))
    return None


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node as Python values, tensors and bodies as messages."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def nodes_in(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of a model, those of functions and of bodies (If, Loop, Scan) included."""
    pending: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while pending:
        for node in pending.pop().node:
            yield node
            pending.extend(bodies_of(node))


def graphs_in(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the graph of a model, and all bodies in it and in its functions."""
    yield model.graph
    for node in nodes_in(model):
        yield from bodies_of(node)


def tensors_in(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor that a model stores, those in nodes, bodies and functions included."""
    for graph in graphs_in(model):
        yield from graph.initializer
    for node in nodes_in(model):
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.type == AttributeProto.TENSOR else attribute.tensors


def bodies_of(node: NodeProto) -> list[GraphProto]:
    """Return the graphs that a node runs."""
    return [
        body
        for attribute in node.attribute
        for body in ([attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs)
    ]


def unique_names(nodes: Iterable[NodeProto]) -> list[str]:
    """Return a name of its own for each node: the file's where it is one, else with a number, or its operator's."""
    found, counters = dict[str, None](), Counter[str]()
    for node in nodes:
        name, wanted = node.name, node.name or node.op_type
        while not name or name in found:
            counters[wanted] += 1
            name = f"{wanted}_{counters[wanted]}"
        found[name] = None
    return list(found)


def label(node: NodeProto) -> str:
    """Return how a message names ``node``."""
    return f"node “{node.name or next(iter(node.output), '')}” ({node.op_type})"


def read_by(node: NodeProto) -> set[str]:
    """Return the values that ``node`` reads, those that its bodies (If, Loop, Scan) read from outside included."""
    names: set[str] = set()
    pending = deque([node])
    while pending:
        each = pending.popleft()
        names.update(filter(None, each.input))
        for body in bodies_of(each):
            pending.extend(body.node)
            names.update(output.name for output in body.output)
    return names
