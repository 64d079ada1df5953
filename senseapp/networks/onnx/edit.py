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
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec, SenseError
from senseapp.networks.onnx.build import ReadAt, StoredAs
from senseapp.networks.onnx.change import Array, GraphEdit
from senseapp.networks.onnx.check import TOLERANCE_OF_ROUNDED, Differs, check, first_unlike, rounds, sample_inputs
from senseapp.networks.onnx.difference import OnnxDifference, difference
from senseapp.networks.onnx.graph import PartOf
from senseapp.networks.onnx.infer import input_shapes
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.read import tensor_in
from senseapp.networks.onnx.shrink import follow_shapes, shrunk

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
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
    content = writing.edit.of(opened.content)
    if content != opened.content:
        _check(opened, writing.as_written(), content)
    return EditedOnnx(content=content, difference=difference(opened.content, content))


def network_in(model: nn.Module) -> OnnxNetwork:
    """Return the network of a file that ``model`` is or wraps; raises InvalidSpec where there is none."""
    found = next((each for each in model.modules() if isinstance(each, OnnxNetwork)), None)
    if found is None:
        raise InvalidSpec("This network does not come from an ONNX file, so there is no file to edit.")
    return found


@dataclass(slots=True, kw_only=True)
class _Writing:
    """Where each changed number of ``network`` goes in the file."""

    opened: OpenedOnnx
    network: OnnxNetwork
    edit: GraphEdit = field(default_factory=GraphEdit)
    rounded: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(init=False)
    stored: dict[str, TensorProto] = field(init=False)
    made_by: dict[str, NodeProto] = field(init=False)

    def __post_init__(self) -> None:
        self.before = tensors_of(self.opened.network)
        graph = onnx.load_from_string(self.opened.content).graph
        self.stored = {each.name: each for each in graph.initializer}
        self.made_by = {name: node for node in graph.node for name in node.output if name}
        for node in graph.node:
            if (held := tensor_in(node)) is not None:
                self.stored[node.output[0]] = held

    def collect(self) -> None:
        """Find a place for every number that changed."""
        tensors = self.opened.tensors
        before, after = self.before, tensors_of(self.network)
        changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
        if any(value.shape != before[name].shape for name, value in after.items()):
            follow_shapes(self.edit, self.opened, self.network)
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
            raise InvalidSpec(
                f"“{initializer}” is inside a function or branch (If) of the graph, where it cannot be changed."
            )
        tensor = self.stored[initializer]
        # What only operations read has to stay in its place, as has what did not change.
        readers = self.opened.readers
        names = sorted(names, key=lambda name: (name in readers, name in changed))
        before = self.before
        found = {
            name: stored_form(after[name], self.opened.tensors[name], tensor.dims, before[name].shape) for name in names
        }
        first = found[names[0]]
        if names[0] in changed:
            self.edit.values[initializer] = values = in_type_of(tensor, first)
            if tensor.data_type in _HALF:
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
        readers = self.opened.readers.get(name) or self._readers_of_stored(name)
        if not readers:
            raise InvalidSpec(f"“{name}” is computed by the file's graph, so other numbers of it cannot be written.")
        before = self.before[name]
        for each in readers:
            self._refuse_integers(name, each)
            turned, old = (value.T, before.T) if each.transposed else (value, before)
            is_repeated = before.numel() != np.prod(each.shape, dtype=np.int64)
            shape = list(value.shape) if is_repeated else shrunk(each.shape, old.shape, turned.shape)
            array = turned.reshape(shape).contiguous().numpy().astype(self._type_of(name))
            self.rounded[name] = torch.from_numpy(array.astype(np.float32)).reshape(turned.shape)
            if each.transposed:
                self.rounded[name] = self.rounded[name].T
            new = self._name_of(name)
            self.edit.added[new] = array
            self.edit.rewired.setdefault(each.output, {})[each.position] = new

    def _readers_of_stored(self, name: str) -> tuple[ReadAt, ...]:
        """Return where nodes of the file read a tensor that no layer holds, such as a table of attention heads."""
        network = self.opened.network
        paths = {module: path for path, module in network.named_modules()}
        values = {f"{paths[each.holder]}.{each.attribute}".removeprefix("."): each.name for each in network.stored}
        shape = tuple(self.before[name].shape)
        return tuple(
            ReadAt(output=node.output[0], position=position, transposed=False, shape=shape)
            for node in onnx.load_from_string(self.opened.content).graph.node
            for position, read in enumerate(node.input)
            if read and read == values.get(name)
        )

    def _type_of(self, name: str) -> Any:
        """Return the type that new numbers of a parameter are stored in: that of the tensor that it came from."""
        held = self.opened.tensors.get(name)
        kinds = [self.stored[held.initializer]] if held is not None else self.stored.values()
        half = next((each.data_type for each in kinds if each.data_type in _HALF), None)
        return np.float32 if half is None else helper.tensor_dtype_to_np_dtype(half)

    def _refuse_integers(self, name: str, place: ReadAt) -> None:
        node = self.made_by.get(place.output)
        if node is not None and place.position == PartOf.NOWHERE:
            raise InvalidSpec(f"“{name}” is in “{node.name}” ({node.op_type}) in a form that cannot be changed alone.")
        if node is None:
            raise InvalidSpec(f"“{name}” is inside a function or branch (If) of the graph, where it cannot be changed.")
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


def stored_form(value: Tensor, stored: StoredAs, dims: Sequence[int], before: Sequence[int]) -> Tensor:
    """Return a parameter with its axes in the order and shape of the tensor of the file.

    ``dims`` is the shape of that tensor, and ``before`` was that of the parameter. Where it is smaller now, the axes
    of the tensor shrink with those of the parameter.
    """
    permuted = shrunk([dims[axis] for axis in stored.order], before, value.shape)
    inverse = [stored.order.index(axis) for axis in range(len(dims))]
    return value.reshape(permuted).permute(inverse).contiguous()


def module_form(value: Tensor, stored: StoredAs, shape: Sequence[int]) -> Tensor:
    """Undo :func:`stored_form`."""
    return value.permute(stored.order).reshape(tuple(shape))


def in_type_of(tensor: TensorProto, value: Tensor) -> Array:
    """Return numbers in the type of a tensor of the file; those that did not change are its own."""
    before = numpy_helper.to_array(tensor)
    new: Array = value.numpy().astype(before.dtype)
    return (
        new if new.shape != before.shape else np.where(value.numpy() == before.astype(value.numpy().dtype), before, new)
    )


def _check(opened: OpenedOnnx, network: OnnxNetwork, content: bytes) -> None:
    """Raise InvalidSpec unless onnxruntime computes from ``content`` what ``network`` does.

    A network that amplifies rounding, as many do on noise once they have lost much, is compared step by step.
    """
    try:
        graph, model = normalise(content, in_runtime=opened.in_runtime)
        inputs = sample_inputs(graph, input_shapes(graph, opened.input_shape[0], opened.size))
        tolerance = TOLERANCE_OF_ROUNDED if rounds(graph) else _TOLERANCE
        batch = opened.input_shape[0]
        try:
            check(network, model, inputs, batch=batch, tolerance=tolerance)
        except Differs:
            if first_unlike(network, model, inputs, batch=batch, tolerance=tolerance):
                raise
    except SenseError as error:
        raise InvalidSpec(f"The uploaded file cannot be edited: {error}") from error
