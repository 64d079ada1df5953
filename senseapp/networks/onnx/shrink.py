"""Changes besides weights in a file whose network lost channels: groups of convolutions, shapes, declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, numpy_helper

from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.change import Array, GraphEdit
from senseapp.networks.onnx.check import sample_inputs
from senseapp.networks.onnx.compound import by_head
from senseapp.networks.onnx.infer import input_shapes
from senseapp.networks.onnx.modules import Fixed, OnnxNetwork, Operation
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.onnx.read import tensor_in
from senseapp.networks.profile import CONVOLUTIONS

_HEADS = 1  # their axis in queries and keys by head
Shape = tuple[int, ...]
Numbers = Sequence[int]


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


def follow_shapes(edit: GraphEdit, opened: OpenedOnnx, network: OnnxNetwork) -> None:
    """Add to ``edit`` what follows from fewer channels in ``network``, a copy of the one of ``opened``."""
    before, after = (_shapes(opened, each) for each in (opened.network, network))
    graph = onnx.load_from_string(opened.content).graph
    known = {name for name, shape in before.items() if after.get(name) == shape}
    edit.undeclared = {each.name for each in graph.value_info if each.name not in known}
    _change_groups(edit, opened, network)
    _change_heads(edit, graph, before, after)
    constants = _constants(graph)
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    parts = _changed_parts(opened.network, network)
    for node in graph.node:
        output = next(iter(node.output), "")
        if output in parts:
            _change_parts(edit, node, parts[output], constants, readers)
        elif (
            node.op_type == "Reshape" and output not in before and before.get(node.input[0]) != after.get(node.input[0])
        ):
            _flatten_whole(edit, node, constants, readers)
        elif node.op_type == "Reshape" and before.get(output) != after.get(output):
            _change_target(edit, node, before[output], after[output], constants, readers)
        elif node.op_type == "Gather" and before.get(output) != after.get(output):
            _change_indices(edit, node, after[output], constants, readers)


def _change_target(
    edit: GraphEdit,
    node: NodeProto,
    before: Shape,
    after: Shape,
    constants: Mapping[str, TensorProto],
    readers: Mapping[str, int],
) -> None:
    """Let a Reshape make rows that are shorter now; it reads a target of its own where others read the stored one."""
    name = node.input[1]
    stored = constants.get(name)
    if stored is None:
        edit.added[f"{node.output[0]} shape"] = np.array([-1, *after[1:]], np.int64)
        edit.rewired.setdefault(node.output[0], {})[1] = f"{node.output[0]} shape"
        return
    target = numpy_helper.to_array(stored).copy()
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new and target[axis] == old:
            target[axis] = new
    if np.array_equal(target, numpy_helper.to_array(stored)):
        return
    _store(edit, node, 1, target, readers)


def _flatten_whole(
    edit: GraphEdit, node: NodeProto, constants: Mapping[str, TensorProto], readers: Mapping[str, int]
) -> None:
    """Let a Reshape to one row, which the network does together with the next one, make a row of any length."""
    stored = constants.get(node.input[1])
    if stored is not None and list(stored.dims) == [1] and numpy_helper.to_array(stored).item() > 0:
        _store(edit, node, 1, np.array([-1], np.int64), readers)


def _change_parts(
    edit: GraphEdit,
    node: NodeProto,
    parts: Mapping[int, tuple[Numbers, Numbers]],
    constants: Mapping[str, TensorProto],
    readers: Mapping[str, int],
) -> None:
    """Let a Split or Slice take the parts of an axis with fewer channels; numbers that the graph computes follow."""
    for position, (old, new) in parts.items():
        stored = constants.get(node.input[position])
        if stored is None:
            continue
        if numpy_helper.to_array(stored).tolist() != list(old):
            raise InvalidSpec(f"The numbers by which “{node.name}” ({node.op_type}) cuts channels cannot be changed.")
        _store(edit, node, position, np.array(new, numpy_helper.to_array(stored).dtype), readers)


def _changed_parts(before: OnnxNetwork, after: OnnxNetwork) -> dict[str, dict[int, tuple[Numbers, Numbers]]]:
    """Return, by first output of each Split and Slice, which constant numbers differ, by their position."""
    found: dict[str, dict[int, tuple[Numbers, Numbers]]] = {}
    for old, new in zip(before.steps, after.steps, strict=True):
        one, other = (getattr(step.holder, step.attribute) for step in (old, new))
        if isinstance(one, Operation) and one.op in ("Split", "Slice"):
            for position, (mine, theirs) in enumerate(zip(one.slots, other.slots, strict=True)):
                if mine != theirs and isinstance(mine, Fixed) and isinstance(theirs, Fixed):
                    found.setdefault(old.outputs[0], {})[position] = mine.value, theirs.value
    return found


def _change_indices(
    edit: GraphEdit, node: NodeProto, after: Shape, constants: Mapping[str, TensorProto], readers: Mapping[str, int]
) -> None:
    """Let a Gather that takes all elements of a row in order, as exports of ``as_strided`` do, take fewer."""
    stored = constants.get(node.input[1])
    if stored is None:
        return
    indices = numpy_helper.to_array(stored)
    if np.array_equal(indices.ravel(), np.arange(indices.size)) and indices.ndim == len(after):
        _store(edit, node, 1, np.arange(np.prod(after), dtype=indices.dtype).reshape(after), readers)


def _store(edit: GraphEdit, node: NodeProto, position: int, numbers: Array, readers: Mapping[str, int]) -> None:
    """Let ``node`` read other numbers, of its own where others read the stored ones."""
    name = node.input[position]
    if readers[name] == 1:
        edit.values[name] = numbers
    else:
        own = f"{node.output[0]} {'shape' if node.op_type == 'Reshape' else f'input {position}'}"
        edit.added[own] = numbers
        edit.rewired.setdefault(node.output[0], {})[position] = own


def _change_groups(edit: GraphEdit, opened: OpenedOnnx, network: OnnxNetwork) -> None:
    for name, module in network.named_modules():
        if isinstance(module, CONVOLUTIONS) and module.groups != opened.network.get_submodule(name).groups:
            for place in opened.readers[f"{name}.weight"]:
                edit.counts[place.output] = {"group": module.groups}


def _change_heads(
    edit: GraphEdit, graph: onnx.GraphProto, before: Mapping[str, Shape], after: Mapping[str, Shape]
) -> None:
    """Let an attention that is one node of the file have as many heads as its queries and keys have now."""
    for node in graph.node:
        for attribute in node.attribute:
            value = by_head(node.output[0], attribute.name) if node.output else ""
            if value in before and before[value] != after[value]:
                edit.counts.setdefault(node.output[0], {})[attribute.name] = after[value][_HEADS]


def _constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    found = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if (held := tensor_in(node)) is not None:
            found[node.output[0]] = held
    return found


def _shapes(opened: OpenedOnnx, network: OnnxNetwork) -> dict[str, Shape]:
    """Return the shape of every value that ``network`` computes, at the batch of the file."""
    graph, _ = normalise(opened.content, in_runtime=opened.in_runtime)
    inputs = sample_inputs(graph, input_shapes(graph, opened.input_shape[0], opened.size))
    names = [name for step in network.steps for name in step.outputs if name]
    device = next((each.device for each in network.parameters()), torch.device("cpu"))
    arguments = [inputs[name].to(device) for name in network.input_names]
    with torch.no_grad():
        values = network.values(names, *arguments)
    return {name: tuple(each.shape) for name, each in values.items() if isinstance(each, torch.Tensor)}
