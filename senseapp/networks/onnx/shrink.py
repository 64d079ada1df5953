"""Changes besides weights in a file whose network lost channels: groups of convolutions, shapes, declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from onnx import NodeProto

from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.check import sample_inputs
from senseapp.networks.onnx.graph import Array, OnnxGraph
from senseapp.networks.onnx.infer import input_shapes
from senseapp.networks.onnx.modules import Fixed, OnnxNetwork, Operation
from senseapp.networks.onnx.normalise import normalise
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.networks.profile import CONVOLUTIONS

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


def follow_shapes(graph: OnnxGraph, opened: OpenedOnnx, network: OnnxNetwork) -> None:
    """Change in the ``graph`` of a file what follows from fewer channels in ``network``, a copy of that of the file."""
    before, after = _shapes(opened, network)
    known = {name for name, shape in before.items() if after.get(name) == shape}
    graph.undeclare(each.name for each in graph.model.graph.value_info if each.name not in known)
    _change_groups(graph, opened, network)
    parts = _changed_parts(opened.network, network)
    for node in graph.nodes:
        output = next(iter(node.output), "")
        if output in parts:
            _change_parts(graph, node, parts[output])
        elif node.op_type == "Reshape" and before.get(output) != after.get(output):
            _change_target(graph, node, before[output], after[output])


def _change_target(graph: OnnxGraph, node: NodeProto, before: Shape, after: Shape) -> None:
    """Let a Reshape make rows that are shorter now."""
    stored = graph.array(node.input[1])
    if stored is None:
        _store(graph, node, 1, np.array([-1, *after[1:]], np.int64))
        return
    target = stored.copy()
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new and target[axis] == old:
            target[axis] = new
    if not np.array_equal(target, stored):
        _store(graph, node, 1, target)


def _change_parts(graph: OnnxGraph, node: NodeProto, parts: Mapping[int, tuple[Numbers, Numbers]]) -> None:
    """Let a Split or Slice take the parts of an axis with fewer channels; numbers that the graph computes follow."""
    for position, (old, new) in parts.items():
        stored = graph.array(node.input[position])
        if stored is None:
            continue
        if stored.tolist() != list(old):
            raise InvalidSpec(f"The numbers by which “{node.name}” ({node.op_type}) cuts channels cannot be changed.")
        _store(graph, node, position, np.array(new, stored.dtype))


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


def _store(graph: OnnxGraph, node: NodeProto, position: int, numbers: Array) -> None:
    """Let ``node`` read other numbers, of its own where others read the stored ones or the graph computes them."""
    name = node.input[position]
    if graph.tensor(name) is None or not graph.is_read_once(name):
        name = graph.fresh(f"{node.output[0]} {'shape' if node.op_type == 'Reshape' else f'input {position}'}")
        graph.read_instead(node, position, name)
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
    inputs = sample_inputs(graph, input_shapes(graph, opened.input_shape[0], opened.size))
    found = []
    for each in (opened.network, network):
        names = [name for step in each.steps for name in step.outputs if name]
        device = next((parameter.device for parameter in each.parameters()), torch.device("cpu"))
        with torch.no_grad():
            values = each.values(names, *[inputs[name].to(device) for name in each.input_names])
        found.append({name: tuple(value.shape) for name, value in values.items() if isinstance(value, torch.Tensor)})
    return found[0], found[1]
