"""An uploaded ONNX file with the weights of a changed copy of its network.

A network that was read from a file is changed as a torch module. Each changed parameter is written into the tensor of
the file that it came from, in the type of that tensor. Where this would change another layer too, or the graph computes
the weight, the nodes of the layer read a new tensor. Groups, shapes and declarations follow where the network lost
channels. The file is then compared with the module in onnxruntime.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from torch import Tensor, nn

from senseapp.core.errors import InvalidSpec, SenseError
from senseapp.core.registry import grouped
from senseapp.networks.onnx.build import ReadAt
from senseapp.networks.onnx.check import TOLERANCE_OF_ROUNDED, check, sample_inputs, tolerance_of
from senseapp.networks.onnx.difference import HALF
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.modules import OnnxNetwork
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.profile import CONVOLUTIONS

Shape = tuple[int, ...]
_INSIDE = "is inside a function or branch (If) of the graph, where it cannot be changed."


def with_weights(opened: OpenedOnnx, model: nn.Module) -> bytes:
    """Return the file of ``opened`` with the weights of ``model``, a changed copy of its network.

    Raises InvalidSpec if a changed weight has no place in the file, or the file would not compute what ``model`` does.
    """
    network = network_in(model)
    writing = _Writing(opened=opened, before=tensors_of(opened.network), after=tensors_of(network))
    if not writing.changed:
        return opened.content
    if any(value.shape != writing.before[name].shape for name, value in writing.after.items()):
        follow_shapes(writing.graph, opened, network)
    writing.write()
    content = writing.graph.content()
    _check(opened, network, content)
    return content


def network_in(model: nn.Module) -> OnnxNetwork:
    """Return the network of a file that ``model`` is or wraps; raises InvalidSpec where there is none."""
    found = next((each for each in model.modules() if isinstance(each, OnnxNetwork)), None)
    if found is None:
        raise InvalidSpec("This network does not come from an ONNX file, so there is no file to edit.")
    return found


@dataclass(slots=True, kw_only=True)
class _Writing:
    """Writes the parameters and buffers of ``after`` that differ from ``before`` into the graph of the file."""

    opened: OpenedOnnx
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    graph: OnnxGraph = field(init=False)
    changed: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.graph = OnnxGraph(self.opened.content)
        self.changed = {name for name, value in self.after.items() if not torch.equal(value, self.before[name])}

    def write(self) -> None:
        """Write every parameter and buffer that changed."""
        holders = grouped((found.initializer, name) for name, found in self.opened.tensors.items())
        for name in sorted(self.changed - self.opened.tensors.keys()):
            self._add(name)
        for initializer, names in holders.items():
            if not self.changed.isdisjoint(names):
                self._write(initializer, names)

    def _write(self, initializer: str, names: Sequence[str]) -> None:
        """Write one tensor of the file from the parameters that hold it; those that differ get one of their own."""
        tensor = self.graph.tensor(initializer)
        if tensor is None:
            raise InvalidSpec(f"“{initializer}” {_INSIDE}")
        # What only operations read has to stay in its place, as has what did not change.
        first, *others = sorted(names, key=lambda name: (name in self.opened.readers, name in self.changed))
        found = {name: self._stored_form(name, list(tensor.dims)) for name in names}
        for name in others:
            if not torch.equal(found[name], found[first]):
                self._add(name)
        if first in self.changed:
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            self.graph.store(initializer, found[first].numpy().astype(kind))

    def _stored_form(self, name: str, dims: Sequence[int]) -> Tensor:
        """Return a parameter as the tensor of the file, once of shape ``dims``, holds it; it may have shrunk."""
        order = self.opened.tensors[name].order
        value = self.after[name]
        permuted = shrunk([dims[axis] for axis in order], self.before[name].shape, value.shape)
        return value.reshape(permuted).permute([order.index(axis) for axis in range(len(dims))]).contiguous()

    def _add(self, name: str) -> None:
        """Let the nodes that read a parameter read a tensor of its own."""
        readers = self.opened.readers.get(name)
        if not readers:
            raise InvalidSpec(f"“{name}” is computed by the file's graph, so other numbers of it cannot be written.")
        value, before = self.after[name], self.before[name]
        written: dict[tuple[int, ...], str] = {}
        for each in readers:
            self._refuse_integers(name, each)
            turned, old = (value.T, before.T) if each.transposed else (value, before)
            is_repeated = before.numel() != np.prod(each.shape, dtype=np.int64)
            shape = tuple(value.shape) if is_repeated else tuple(shrunk(each.shape, old.shape, turned.shape))
            key = (each.transposed, *shape)
            if key not in written:
                written[key] = self.graph.fresh(name)
                self.graph.store(written[key], turned.reshape(shape).numpy().astype(self._type_of(name)))
            node = self.graph.maker(each.output)
            assert node is not None
            self.graph.read_instead(node, each.position, written[key])

    def _type_of(self, name: str) -> Any:
        """Return the type that new numbers of a parameter are stored in: half precision where the file has that."""
        held = self.opened.tensors.get(name)
        tensors = self.graph.tensors()
        kinds = [tensors[held.initializer]] if held is not None else tensors.values()
        half = next((each.data_type for each in kinds if each.data_type in HALF), TensorProto.FLOAT)
        return helper.tensor_dtype_to_np_dtype(half)

    def _refuse_integers(self, name: str, place: ReadAt) -> None:
        node = self.graph.maker(place.output)
        if node is None:
            raise InvalidSpec(f"“{name}” {_INSIDE}")
        maker = self.graph.maker(node.input[place.position])
        if maker is not None and maker.op_type == "DequantizeLinear":
            raise InvalidSpec(
                f"“{name}” is stored as integers in the file, which is quantized already. Compress the float file "
                "that it was made from."
            )
        if maker is not None and maker.op_type == "Cast":
            raise InvalidSpec(f"“{name}” is shared between layers in half precision, and cannot differ between them.")


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer on the CPU, a shared one under each of its names."""
    named = chain(network.named_parameters(remove_duplicate=False), network.named_buffers(remove_duplicate=False))
    return {name: each.detach().cpu() for name, each in named}


def _check(opened: OpenedOnnx, network: OnnxNetwork, content: bytes) -> None:
    """Raise InvalidSpec unless onnxruntime computes from ``content`` what ``network`` does."""
    network = copy.deepcopy(network).cpu().eval()
    network.images = None  # it is compared on inputs as the file declares them
    batch = opened.input_shape[0]
    try:
        graph, file = normalise(content, in_runtime=opened.in_runtime)
        inputs = sample_inputs(graph, batch, opened.size)
        half = any(each.data_type in HALF for each in OnnxGraph(content).tensors().values())
        tolerance = TOLERANCE_OF_ROUNDED if half else tolerance_of(graph, exact=1e-4)
        check(network, file, inputs, batch=batch, tolerance=tolerance)
    except SenseError as error:
        raise InvalidSpec(f"The uploaded file cannot be edited: {error}") from error


def shrunk(dims: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return the shape of a tensor of the file whose parameter went from shape ``before`` to ``after``.

    Raises InvalidSpec where it is not the parameter's own but for axes of one number.

    >>> shrunk([1, 8, 1, 1], [8], [6]), shrunk([8, 3], [8, 3], [8, 2]), shrunk([2, 4], [8], [8])
    ([1, 6, 1, 1], [8, 2], [2, 4])
    """
    if tuple(before) == tuple(after):
        return list(dims)
    if [each for each in dims if each != 1] != [each for each in before if each != 1]:
        raise InvalidSpec(f"A weight of shape {list(dims)} in the file cannot lose channels of its {list(before)}.")
    if tuple(dims) == tuple(before):
        return list(after)
    left = iter(new for old, new in zip(before, after, strict=True) if old != 1)
    return [each if each == 1 else next(left) for each in dims]


def follow_shapes(graph: OnnxGraph, opened: OpenedOnnx, network: OnnxNetwork) -> None:
    """Change in the ``graph`` of a file what follows from fewer channels in ``network``, a copy of that of the file."""
    before, after = _shapes(opened, network)
    del graph.model.graph.value_info[:]  # declared shapes, which runtimes infer
    _change_groups(graph, opened, network)
    for node in graph.nodes:
        output = next(iter(node.output), "")
        if before.get(output) == after.get(output):
            continue
        if node.op_type == "Reshape":
            _change_target(graph, node, before[output], after[output])
        elif node.op_type == "Gather":
            _change_indices(graph, node, before[output], after[output])


def _change_target(graph: OnnxGraph, node: NodeProto, before: Shape, after: Shape) -> None:
    """Let a Reshape make rows that are shorter now, by a shape of its own where others read the stored one."""
    stored, target = graph.array(node.input[1]), [-1, *after[1:]]
    if stored is not None:
        target = [new if each == old else each for each, old, new in zip(stored.tolist(), before, after, strict=True)]
        if target == stored.tolist():
            return
    _store(graph, node, "shape", np.array(target, np.int64))


def _change_indices(graph: OnnxGraph, node: NodeProto, before: Shape, after: Shape) -> None:
    """Let a Gather of a whole flat tensor in order take one with fewer channels."""
    indices = graph.array(node.input[1])
    if indices is not None and indices.shape == before:
        _store(graph, node, "indices", np.arange(np.prod(after), dtype=indices.dtype).reshape(after))


def _store(graph: OnnxGraph, node: NodeProto, what: str, numbers: NDArray[Any]) -> None:
    """Let the second input of ``node`` be ``numbers``, of its own where others read the stored ones."""
    name = node.input[1]
    if graph.tensor(name) is None or not graph.is_read_once(name):
        name = graph.fresh(f"{node.output[0]} {what}")
        graph.read_instead(node, 1, name)
    graph.store(name, numbers)


def _change_groups(graph: OnnxGraph, opened: OpenedOnnx, network: OnnxNetwork) -> None:
    for name, module in network.named_modules():
        if isinstance(module, CONVOLUTIONS) and module.groups != opened.network.get_submodule(name).groups:
            for place in opened.readers[f"{name}.weight"]:
                node = graph.maker(place.output)
                for attribute in () if node is None else node.attribute:
                    if attribute.name == "group":
                        attribute.i = module.groups


def _shapes(opened: OpenedOnnx, network: OnnxNetwork) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of all values at the batch of the file, in its network and in the changed copy ``network``."""
    graph, _ = normalise(opened.content, in_runtime=opened.in_runtime)
    inputs = sample_inputs(graph, opened.input_shape[0], opened.size)
    found = []
    for each in (opened.network, network):
        names = [name for step in each.steps for name in step.outputs if name]
        device = next((parameter.device for parameter in each.parameters()), torch.device("cpu"))
        with torch.no_grad():
            values = each.values(names, *[inputs[name].to(device) for name in each.input_names])
        found.append({name: tuple(value.shape) for name, value in values.items() if isinstance(value, torch.Tensor)})
    return found[0], found[1]
