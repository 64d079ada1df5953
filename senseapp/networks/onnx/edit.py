"""An uploaded ONNX file with other weights: the same bytes but for the tensors whose numbers changed.

A network that was read from a file is changed as a torch module. What changed is written back into the tensors of the
file that the parameters came from, in their own types. Where that would change another layer too, or the graph computes
the weight, the nodes of the layer read a new tensor. The edited file is then compared with the module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec, SenseError
from senseapp.networks.onnx.build import ReadAt, StoredAs
from senseapp.networks.onnx.check import TOLERANCE_OF_ROUNDED, check, rounds, sample_inputs
from senseapp.networks.onnx.difference import OnnxDifference, difference
from senseapp.networks.onnx.infer import input_shapes
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.read import tensor_in
from senseapp.networks.onnx.wire import (
    ATTRIBUTE_TENSOR,
    ATTRIBUTES,
    GRAPH,
    INITIALIZERS,
    INPUTS,
    NODES,
    NUMBERS,
    SHAPE,
    Change,
    replaced,
    rewritten,
)

Array = NDArray[np.generic]

_TOLERANCE = 1e-4  # of the largest number of an output


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedOnnx:
    """The edited file, and what differs from the uploaded one."""

    content: bytes
    difference: OnnxDifference


def with_weights(opened: OpenedOnnx, model: nn.Module) -> EditedOnnx:
    """Return the file of ``opened`` with the weights of ``model``, a changed copy of its network.

    Raises:
        InvalidSpec: a changed weight has no place in the file, or the file would not compute what ``model`` does.
    """
    writing = _Writing(opened=opened, network=network_in(model))
    writing.collect()
    content = edited(opened.content, writing.values, writing.rewired, writing.added)
    if content != opened.content:
        _check(opened, writing.as_written(), content)
    return EditedOnnx(content=content, difference=difference(opened.content, content))


def network_in(model: nn.Module) -> OnnxNetwork:
    """Return the network of a file that ``model`` is or wraps; raises InvalidSpec where there is none."""
    found = next((each for each in model.modules() if isinstance(each, OnnxNetwork)), None)
    if found is None:
        raise InvalidSpec("This network does not come from an ONNX file, so there is no file to edit.")
    return found


def edited(
    content: bytes,
    values: Mapping[str, Array],
    rewired: Mapping[str, Mapping[int, str]] | None = None,
    added: Mapping[str, Array] | None = None,
) -> bytes:
    """Return an ONNX file with other tensors; all else is copied byte for byte.

    Args:
        content: of the file.
        values: by name of an initializer, or output of a Constant node: numbers in the type that is stored.
        rewired: by the first output of a node: names that some of its inputs get.
        added: new initializers.
    """
    change = _GraphChange(values=values, rewired=rewired or {})
    new = [
        (INITIALIZERS, numpy_helper.from_array(each, name).SerializeToString()) for name, each in (added or {}).items()
    ]

    def graph(message: bytes) -> Sequence[bytes]:
        return [rewritten(message, {NODES: change.node, INITIALIZERS: change.initializer}, new)]

    found = rewritten(content, {GRAPH: graph})
    missing = (values.keys() | change.rewired.keys()) - change.done
    if missing:
        raise InvalidSpec(f"“{min(missing)}” lies in a function of the file's graph, where it cannot be changed.")
    return found


@dataclass(slots=True, kw_only=True)
class _GraphChange:
    values: Mapping[str, Array]
    rewired: Mapping[str, Mapping[int, str]]
    done: set[str] = field(default_factory=set)

    def initializer(self, message: bytes) -> Sequence[bytes]:
        name = TensorProto.FromString(message).name
        if name not in self.values:
            return [message]
        self.done.add(name)
        return [with_numbers(message, self.values[name])]

    def node(self, message: bytes) -> Sequence[bytes]:
        node = NodeProto.FromString(message)
        output = next(iter(node.output), "")
        if node.op_type == "Constant" and output in self.values:
            self.done.add(output)
            return [with_constant(message, self.values[output])]
        if output in self.rewired:
            self.done.add(output)
            return [rewritten(message, {INPUTS: renaming(self.rewired[output])})]
        return [message]


def with_constant(message: bytes, values: Array) -> bytes:
    """Return the bytes of a Constant node with other numbers."""

    def attribute(message: bytes) -> Sequence[bytes]:
        if AttributeProto.FromString(message).type != AttributeProto.TENSOR:
            return [message]
        return [rewritten(message, {ATTRIBUTE_TENSOR: lambda tensor: [with_numbers(tensor, values)]})]

    return rewritten(message, {ATTRIBUTES: attribute})


def renaming(names: Mapping[int, str]) -> Change:
    """Return a change of the repeated names of a node, by their positions."""
    position = -1

    def rename(message: bytes) -> Sequence[bytes]:
        nonlocal position
        position += 1
        return [names[position].encode()] if position in names else [message]

    return rename


def with_numbers(message: bytes, values: Array) -> bytes:
    """Return the bytes of a tensor with other numbers of its type, stored in the way of the old ones."""
    before, fresh = TensorProto.FromString(message), TensorProto()
    if before.HasField("raw_data"):
        fresh.raw_data = numpy_helper.from_array(values).raw_data
    elif before.data_type == TensorProto.FLOAT:
        fresh.float_data.extend(values.ravel().tolist())
    elif before.data_type == TensorProto.DOUBLE:
        fresh.double_data.extend(values.ravel().tolist())
    elif before.data_type == TensorProto.INT64:
        fresh.int64_data.extend(values.ravel().tolist())
    else:  # half precision is stored as the integers of its bits
        bits = values.view(np.uint16) if values.dtype.itemsize == 2 else values
        fresh.int32_data.extend(bits.ravel().tolist())
    message = replaced(message, NUMBERS, fresh.SerializeToString())
    if list(before.dims) != list(values.shape):
        message = replaced(message, {SHAPE}, TensorProto(dims=values.shape).SerializeToString())
    return message


@dataclass(slots=True, kw_only=True)
class _Writing:
    """Where each changed number of ``network`` goes in the file."""

    opened: OpenedOnnx
    network: OnnxNetwork
    values: dict[str, Array] = field(default_factory=dict)
    added: dict[str, Array] = field(default_factory=dict)
    rewired: dict[str, dict[int, str]] = field(default_factory=dict)
    rounded: dict[str, Tensor] = field(default_factory=dict)
    stored: dict[str, TensorProto] = field(init=False)
    made_by: dict[str, NodeProto] = field(init=False)

    def __post_init__(self) -> None:
        graph = onnx.load_from_string(self.opened.content).graph
        self.stored = {each.name: each for each in graph.initializer}
        self.made_by = {name: node for node in graph.node for name in node.output if name}
        for node in graph.node:
            if (held := tensor_in(node)) is not None:
                self.stored[node.output[0]] = held

    def collect(self) -> None:
        """Find a place for every number that changed."""
        tensors = self.opened.tensors
        before, after = tensors_of(self.opened.network), tensors_of(self.network)
        if any(value.shape != before[name].shape for name, value in after.items()):
            raise InvalidSpec("Channels were removed from this network, which cannot be done in the uploaded file.")
        changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
        holders: dict[str, list[str]] = {}
        for name, found in tensors.items():
            holders.setdefault(found.initializer, []).append(name)
        for name in sorted(changed - tensors.keys()):
            self._add(name, after[name])
        for initializer in dict.fromkeys(
            tensors[name].initializer for name in after if name in changed & tensors.keys()
        ):
            self._write(initializer, holders[initializer], changed, after)

    def _write(self, initializer: str, names: Sequence[str], changed: set[str], after: Mapping[str, Tensor]) -> None:
        """Write one tensor of the file, from all parameters that hold it."""
        if initializer not in self.stored:
            raise InvalidSpec(f"“{initializer}” lies in a function of the file's graph, where it cannot be changed.")
        tensor = self.stored[initializer]
        # What only operations read has to stay in its place, as has what did not change.
        readers = self.opened.readers
        names = sorted(names, key=lambda name: (name in readers, name in changed))
        found = {name: stored_form(after[name], self.opened.tensors[name], tensor.dims) for name in names}
        first = found[names[0]]
        if names[0] in changed:
            self.values[initializer] = values = in_type_of(tensor, first)
            if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
                wide = torch.from_numpy(values.astype(np.float32))
                self.rounded.update(
                    {
                        name: module_form(wide, self.opened.tensors[name], after[name].shape)
                        for name in names
                        if torch.equal(found[name], first)
                    }
                )
        for name in names[1:]:
            if not torch.equal(found[name], first):
                self._add(name, after[name])

    def _add(self, name: str, value: Tensor) -> None:
        """Let the nodes that read a parameter read a tensor of its own."""
        readers = self.opened.readers.get(name, ())
        if not readers:
            raise InvalidSpec(f"“{name}” is computed by the file's graph, so other numbers of it cannot be written.")
        for each in readers:
            if value.numel() != np.prod(each.shape, dtype=np.int64) and value.dim() != 1:
                raise InvalidSpec(f"“{name}” is stored in fewer numbers than it stands for, and cannot be written.")
            self._refuse_integers(name, each)
            new = self._name_of(name)
            array = value.T if each.transposed else value
            shape = each.shape if value.numel() == np.prod(each.shape, dtype=np.int64) else tuple(value.shape)
            self.added[new] = array.reshape(shape).contiguous().numpy()
            self.rewired.setdefault(each.output, {})[each.position] = new

    def _refuse_integers(self, name: str, place: ReadAt) -> None:
        node = self.made_by.get(place.output)
        if node is None:
            raise InvalidSpec(f"“{name}” lies in a function of the file's graph, where it cannot be changed.")
        maker = self.made_by.get(node.input[place.position])
        if maker is not None and maker.op_type == "DequantizeLinear":
            raise InvalidSpec(
                f"“{name}” is stored as integers in the file, which is quantized already. Compress the float file "
                "that it was made from."
            )
        if maker is not None and maker.op_type == "Cast":
            raise InvalidSpec(f"“{name}” is shared between layers in half precision, and cannot differ between them.")

    def _name_of(self, name: str) -> str:
        wanted, number = name, 0
        while wanted in self.stored or wanted in self.made_by:
            number += 1
            wanted = f"{name}.{number}"
        return wanted

    def as_written(self) -> OnnxNetwork:
        """Return the network with the numbers that the file holds, which half precision rounds."""
        network = copy.deepcopy(self.network).cpu().eval()
        network.images = None  # it is compared on inputs as the file declares them
        own = {**dict(network.named_parameters(remove_duplicate=False)), **dict(network.named_buffers())}
        with torch.no_grad():
            for name, value in self.rounded.items():
                own[name].copy_(value)
        return network


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer on the CPU, a shared one under each of its names."""
    named = chain(network.named_parameters(remove_duplicate=False), network.named_buffers(remove_duplicate=False))
    return {name: each.detach().cpu() for name, each in named}


def stored_form(value: Tensor, stored: StoredAs, dims: Sequence[int]) -> Tensor:
    """Return a parameter with its axes in the order and shape of the tensor of the file, which has shape ``dims``."""
    permuted = [dims[axis] for axis in stored.order]
    inverse = [stored.order.index(axis) for axis in range(len(dims))]
    return value.reshape(permuted).permute(inverse).contiguous()


def module_form(value: Tensor, stored: StoredAs, shape: Sequence[int]) -> Tensor:
    """Undo :func:`stored_form`."""
    return value.permute(stored.order).reshape(tuple(shape))


def in_type_of(tensor: TensorProto, value: Tensor) -> Array:
    """Return numbers in the type of a tensor of the file; those that did not change are its own."""
    before = numpy_helper.to_array(tensor)
    new = value.numpy().astype(before.dtype)
    return np.where(value.numpy() == before.astype(value.numpy().dtype), before, new)


def _check(opened: OpenedOnnx, network: OnnxNetwork, content: bytes) -> None:
    """Raise InvalidSpec unless onnxruntime computes from ``content`` what ``network`` does."""
    try:
        graph, model = normalise(content)
        inputs = sample_inputs(graph, input_shapes(graph, opened.input_shape[0], opened.size))
        tolerance = TOLERANCE_OF_ROUNDED if rounds(graph) else _TOLERANCE
        check(network, model, inputs, batch=opened.input_shape[0], tolerance=tolerance)
    except SenseError as error:
        raise InvalidSpec(f"The uploaded file cannot be edited: {error}") from error
