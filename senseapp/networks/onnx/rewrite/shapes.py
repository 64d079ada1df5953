"""Values that do not depend on the batch become constants, reshapes hold for any batch and for fewer channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from senseapp.networks.onnx.infer import Facts, evaluate
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph


def fix_known_values(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Turn values that are known and the same at every batch into constants; drop what only led to them."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        found = {name: _same([values[name] for _, values in facts if name in values]) for name in node.outputs if name}
        if all(each is not None for each in found.values()):
            constants.update({name: Constant(value=each) for name, each in found.items() if each is not None})
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _same(values: Sequence[Tensor]) -> Tensor | None:
    first = values[0] if values else None
    if first is None or any(each.is_meta for each in values):
        return None
    return first if all(torch.equal(first, each) for each in values[1:]) else None


def fix_reshape_targets(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Set a constant target of Reshape that holds for any batch, and drop the nodes that only computed it.

    Where the first lengths stay, they are copied (0); channels get −1, so that there may be fewer of them. A reshape of
    a reshape is one.
    """
    constants, makers = dict(graph.constants), graph.producers()

    def fixed(node: Node) -> Node:
        if node.op != "Reshape":
            return node
        sources = dict.fromkeys((_unshaped(node.inputs[0], makers), node.inputs[0]))
        found = ((source, _following(source, node.outputs[0], facts)) for source in sources)
        source, target = next((each for each in found if each[1] is not None), (node.inputs[0], None))
        if target is None and node.inputs[1] not in constants:
            target = _target(node.outputs[0], facts)
        if target is None:
            return replace(node, inputs=(source, *node.inputs[1:]))
        name = f"{node.name} target"
        constants[name] = Constant(value=torch.tensor(target, dtype=torch.int64))
        return replace(node, inputs=(source, name), attributes={})  # 0 copies a length

    return replace(graph, constants=constants).mapped(fixed)


def merge_rolls(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Merge two parts of an axis that are joined in the other order into one roll, as before the export.

    What prunes channels takes any join for one of channels.
    """
    makers = graph.producers()

    def merged(node: Node) -> Node:
        if node.op != "Concat":
            return node
        parts = [maker for name in node.inputs if (maker := makers.get(name)) is not None]
        axis = int(node.attributes.get("axis", 0))
        shift = _shift(parts, axis, graph, facts) if len(parts) == len(node.inputs) == 2 else None
        if shift is None:
            return node
        attributes = {"shift": shift, "axis": axis}
        return replace(node, op="Roll", version=18, inputs=parts[0].inputs[:1], attributes=attributes)

    return graph.mapped(merged)


def _shift(parts: Sequence[Node], axis: int, graph: TorchGraph, facts: Facts) -> int | None:
    """Return by how much an axis is rolled that is joined of ``parts``; None where these are not two slices of it."""
    numbers = [[graph.constants.get(name) for name in part.inputs[1:]] for part in parts]
    sources = {part.inputs[0] for part in parts}
    if any(part.op != "Slice" or len(part.inputs) < 4 or None in own for part, own in zip(parts, numbers, strict=True)):
        return None
    shapes = [values[name].shape for name in sources for _, values in facts]
    axis, rank = axis % len(shapes[0]), len(shapes[0])
    operands = [[each.value for each in own if each is not None] for own in numbers]
    if len(sources) > 1 or len({shape[axis] for shape in shapes}) > 1 or any(own[2].numel() != 1 for own in operands):
        return None
    if any(int(own[2]) % rank != axis for own in operands):
        return None
    places = torch.arange(shapes[0][axis])
    row = places.reshape([-1 if each == axis else 1 for each in range(rank)])
    joined = torch.cat([evaluate(part, [row, *own])[0].flatten() for part, own in zip(parts, operands, strict=True)])
    shift = -int(joined[0]) if len(joined) else 0
    return shift if torch.equal(joined, places.roll(shift)) else None


def merge_image_norms(graph: TorchGraph, facts: Facts) -> TorchGraph:
    """Let an instance norm of whole images, between two reshapes, be one norm of all channels, as before the export.

    What prunes channels loses them in the first reshape.
    """
    makers = graph.producers()

    def merged(node: Node) -> Node:
        norm = makers.get(node.inputs[0]) if node.op == "Reshape" else None
        before = makers.get(norm.inputs[0]) if norm is not None and _is_plain_norm(norm, graph) else None
        if norm is None or before is None or before.op != "Reshape":
            return node
        names = (before.inputs[0], norm.inputs[0], node.outputs[0])
        shapes = [[tuple(values[name].shape) for name in names] for _, values in facts]
        if not all(old == new and flat[:2] == (old[0], 1) for old, flat, new in shapes):
            return node
        attributes = {"epsilon": norm.attributes.get("epsilon", 1e-5)}
        inputs = (before.inputs[0],)
        return replace(node, op="ImageNormalization", version=18, inputs=inputs, attributes=attributes)

    return graph.mapped(merged)


def _is_plain_norm(node: Node, graph: TorchGraph) -> bool:
    """Return whether a node is an instance norm that multiplies by one and adds nothing."""
    if node.op != "InstanceNormalization":
        return False
    scale, bias = (graph.constants.get(name) for name in node.inputs[1:3])
    return scale is not None and bias is not None and bool((scale.value == 1).all()) and not bias.value.any()


def _unshaped(name: str, makers: Mapping[str, Node]) -> str:
    """Return the value that ``name`` is a reshape of."""
    while name in makers and makers[name].op in ("Reshape", "Flatten"):
        name = makers[name].inputs[0]
    return name


def _following(before: str, after: str, facts: Facts) -> list[int] | None:
    """Return a target that copies the first lengths, the batch's among them; None where it depends on the batch.

    What follows is one row, or ends with the channels that the input ends with, or is fixed.
    """
    shapes = [(list(values[before].shape), list(values[after].shape)) for _, values in facts]
    old, new = shapes[0]
    kept = 0
    while kept < min(len(old), len(new)) and all(a[kept : kept + 1] == b[kept : kept + 1] for a, b in shapes):
        kept += 1
    kept = max(0, min(kept, len(new) - 1))
    rest = new[kept:]
    ends_alike = len(old) > kept and len(new) > 0 and old[-1] == new[-1]
    if not rest or 0 in old or not (kept or ends_alike) or any(each[kept:] != rest for _, each in shapes):
        return None
    return [*[0] * kept, *rest[:-1], -1 if len(rest) == 1 or ends_alike else rest[-1]]


def _target(name: str, facts: Facts) -> list[int] | None:
    """Return the lengths of ``name``, −1 for the one that grows with the batch; None where several do."""
    shapes = [values[name].shape for _, values in facts]
    lengths = [each[0] if len(set(each)) == 1 else -1 for each in zip(*shapes, strict=True)]
    return lengths if lengths.count(-1) <= 1 else None
