"""Roundings put into an uploaded file: the nodes of its int8 copy that are new are inserted, all else stays in place.

onnxruntime's quantizer needs a plain graph: sorted, with a name for every node and constants as initializers. It works
on such a copy of the part that is measured; here what it did is carried over to the file itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from senseapp.core.errors import InvalidSpec, first_line_of
from senseapp.networks.onnx.check import part_of
from senseapp.networks.onnx.normalise import sort_nodes
from senseapp.networks.onnx.read import BY_CHANNEL_OPSET, label, opset_of, read_by, tensor_in

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
    model = onnx.load_from_string(content)
    sort_nodes(model)
    constants = {each.name for each in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        held = tensor_in(node)
        if node.op_type == "Constant" and (held is not None or (held := _plain_constant(node)) is not None):
            model.graph.initializer.append(held)
            model.graph.initializer[-1].name = node.output[0]
            constants.add(node.output[0])
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    names = node_names(nodes)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    image_inputs = [each for each in model.graph.input if each.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(image_inputs)
    part = part_of(model, outputs)
    for dim, length in zip(_dims(part), input_shape, strict=True):
        dim.dim_value = length
    if _dims(model)[0].dim_value <= 0:
        _dims(part)[0].dim_param = "batch"
    return bytes(onnx.shape_inference.infer_shapes(part).SerializeToString())


def _dims(model: ModelProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = model.graph.input[0].type.tensor_type.shape.dim
    return dims


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
    """Return the file ``content`` with what onnxruntime's quantizer made of its ``plain`` copy.

    Args:
        content: in an opset of :func:`quantizable`.
        plain: :func:`plain_copy` of it.
        int8: the quantizer's file of ``plain``, or of a copy of it with norms folded into convolutions.
    """
    base, copy, quantized = (onnx.load_from_string(each) for each in (content, plain, int8))
    _Insertion(base=base, plain=copy, int8=quantized).apply()
    return bytes(base.SerializeToString())


@dataclass(slots=True, kw_only=True)
class _Insertion:
    """Quantizer nodes of the plain copy, placed in the file ``base``.

    Attributes:
        wiring: by position of a node, the names that its inputs and its outputs get, by theirs.
        more_inputs: by position of a node, the names of inputs that it gets besides: a bias that was folded into it.
        after: new nodes by the position of the node that they follow; −1 for those before all.
    """

    base: ModelProto
    plain: ModelProto
    int8: ModelProto
    wiring: dict[int, tuple[dict[int, str], dict[int, str]]] = field(default_factory=dict)
    more_inputs: dict[int, list[str]] = field(default_factory=dict)
    after: dict[int, list[NodeProto]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    tensors: dict[str, TensorProto] = field(init=False)

    def __post_init__(self) -> None:
        sort_nodes(self.int8)
        self._place_nodes()
        self.tensors = {each.name: each for each in self.int8.graph.initializer}
        computed = {name for nodes in self.after.values() for node in nodes for name in node.output}
        read = self._read_after()
        stored = {each.name for each in self.base.graph.initializer}
        for _place, node in enumerate(self.base.graph.node):
            if tensor_in(node) is not None or node.op_type == "Constant":
                stored.add(node.output[0])
        before = {name for node in self.base.graph.node for name in read_by(node)}
        self.gone = {name for name in stored if name in computed or (name in before and name not in read)}

    def _place_nodes(self) -> None:
        own = {node.name: node for node in self.plain.graph.node}
        places = {name: place for place, node in enumerate(self.base.graph.node) for name in node.output if name}
        made_at = dict(places)
        left = dict(own)
        for node in self.int8.graph.node:
            before = own.get(node.name)
            if before is None:
                place = max(
                    (made_at[name] for name in node.input if name in made_at and self._is_made(name)), default=-1
                )
                self.after.setdefault(place, []).append(node)
            else:
                del left[node.name]
                place = places[_first(before.output)]
                kept, self.more_inputs[place] = node.input[: len(before.input)], node.input[len(before.input) :]
                self.wiring[place] = (
                    _renamed(before, before.input, kept),
                    _renamed(before, before.output, node.output),
                )
            made_at.update(dict.fromkeys(filter(None, node.output), place))
        self.dropped = {places[_first(node.output)] for node in left.values()}

    def _is_made(self, name: str) -> bool:
        """Return whether a node that stays computes ``name``: constants may be anywhere."""
        return name not in self._constants

    @property
    def _constants(self) -> set[str]:
        return {each.name for each in self.int8.graph.initializer}

    def _read_after(self) -> set[str]:
        found = {each.name for each in self.base.graph.output}
        for place, node in enumerate(self.base.graph.node):
            if place not in self.dropped:
                renamed = self.wiring.get(place, ({}, {}))[0]
                found.update(renamed.get(position, name) for position, name in enumerate(node.input))
                found.update(self.more_inputs.get(place, ()))
                found.update(read_by(node).difference(node.input))
        return found | {name for nodes in self.after.values() for node in nodes for name in node.input}

    @property
    def new_tensors(self) -> list[TensorProto]:
        """The initializers that the file does not have."""
        known = {each.name for each in self.base.graph.initializer} | {
            node.output[0] for node in self.base.graph.node if node.op_type == "Constant"
        }
        read = self._read_after()
        return [each for name, each in self.tensors.items() if name not in known and name in read]

    @property
    def new_opsets(self) -> list[onnx.OperatorSetIdProto]:
        """The sets of operators that only new nodes need."""
        used = {node.domain for nodes in self.after.values() for node in nodes}
        known = {each.domain for each in self.base.opset_import} | {"", "ai.onnx"}
        return [each for each in self.int8.opset_import if each.domain in used - known]

    def apply(self) -> None:
        """Change the file: nodes that stay are rewired, new ones follow what they read, unread tensors are gone."""
        graph, new_tensors, new_opsets = self.base.graph, self.new_tensors, self.new_opsets
        nodes = list(self.after.get(-1, []))
        for place, node in enumerate(graph.node):
            if place not in self.dropped and not (node.op_type == "Constant" and node.output[0] in self.gone):
                self._rewire(place, node)
                nodes.append(node)
            nodes += self.after.get(place, [])
        tensors = [self._current(each) for each in graph.initializer if each.name not in self.gone]
        inputs = [each for each in graph.input if each.name not in self.gone]  # older files list initializers there
        for field_, values in ((graph.node, nodes), (graph.initializer, tensors + new_tensors), (graph.input, inputs)):
            kept = list(values)  # what is deleted lives on in Python
            del field_[:]
            field_.extend(kept)
        self.base.opset_import.extend(new_opsets)

    def _rewire(self, place: int, node: NodeProto) -> None:
        """Give a node the names that its inputs and outputs get, and a Constant its new numbers."""
        held = tensor_in(node) if node.op_type == "Constant" else None
        if held is not None:
            held.CopyFrom(self._current(held, node.output[0]))
        for names, renamed in zip((node.input, node.output), self.wiring.get(place, ({}, {})), strict=True):
            for position, new in renamed.items():
                names[position] = new
        node.input.extend(self.more_inputs.get(place, ()))  # a bias that came with a weight of another name

    def _current(self, tensor: TensorProto, name: str = "") -> TensorProto:
        """Return a tensor of the file with the numbers that the quantizer's file has for it."""
        new = self.tensors.get(name or tensor.name)
        if new is None or new.data_type != tensor.data_type:
            return tensor
        values = numpy_helper.to_array(new)
        if np.array_equal(values, numpy_helper.to_array(tensor), equal_nan=True):
            return tensor
        return numpy_helper.from_array(values, tensor.name)


def _first(names: Sequence[str]) -> str:
    return next(iter(filter(None, names)))


def _renamed(node: NodeProto, before: Sequence[str], after: Sequence[str]) -> dict[int, str]:
    if len(before) != len(after):
        raise InvalidSpec(f"onnxruntime's quantizer changed node “{node.name}”, which cannot be done in the file.")
    pairs = enumerate(zip(before, after, strict=True))
    return {position: new for position, (old, new) in pairs if old != new}
