"""Rewrites of a graph between its file and its modules: each returns another graph of equal values.

Constants are folded, branches (``If``) of a known condition are replaced, a batch that an export has fixed is freed,
and activations of several nodes become one step each. ``check.py`` compares the result with onnxruntime.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx import infer
from senseapp.networks.onnx.operators import entry_of
from senseapp.networks.onnx.torch_graph import Constant, Node, TorchGraph
from senseapp.records.inputs import USUAL_SIZES

_FOLDED = 1 << 24  # elements of one computed constant
_FOLDED_IN_ALL = 1 << 26  # elements of all of them, 256 MB in float32
_RESHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_READ_FROM_STORED = frozenset({*_RESHAPING, "Transpose", "Cast", "DequantizeLinear"})
_BRANCHES = ("else_branch", "then_branch")  # by the condition
_PARTS = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Erf", "Sigmoid", "HardSigmoid", "Clip"})
_KNOWN = (("Gelu", 20, F.gelu), ("HardSwish", 14, F.hardswish), ("Swish", 24, F.silu))
_ARGUMENTS = torch.linspace(-64, 64, 513, dtype=torch.float64)


def fold_constants(graph: TorchGraph) -> TorchGraph:
    """Compute what depends on constants alone, within bounds, and give equal computations one name.

    Two nodes that transpose one initializer yield one constant, so that a weight shared by several nodes stays one.

    Raises InvalidCheckpoint if a constant would have more elements than any network needs, or take longer.
    """
    constants = dict(graph.constants)
    renamed: dict[str, str] = {}
    computed: dict[object, tuple[str, ...]] = {}
    left, budget, folding = [], _FOLDED_IN_ALL, infer.Folding()
    for node in graph.nodes:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        known = all(name in constants for name in node.inputs if name)
        is_layer = node.op in infer.LAYERS and any(
            constants[name].weight for name in node.inputs[1:2] if name in constants
        )
        if not known or is_layer or entry_of(node.op, node.version) is None:
            left.append(node)
            continue
        told = sorted(node.attributes.items())
        told = [(name, (at.dtype, at.tolist()) if isinstance(at, Tensor) else at) for name, at in told]
        key = (node.op, repr(told), node.inputs)
        if key in computed or node.op == "Identity":
            renamed.update(zip(node.outputs, computed.get(key, node.inputs), strict=False))
            continue
        operands = [constants[name].value if name else None for name in node.inputs]
        folding.spend(node, operands)
        try:
            results = infer.evaluate(node, operands, most=min(budget, _FOLDED))
        except (infer.TooLarge, UnsupportedModel):  # too large to keep, or refused later, if it is needed at all
            left.append(node)
            continue
        source = constants.get(node.inputs[0]) if node.inputs else None
        for output, value in zip(node.outputs, results, strict=False):
            if output and isinstance(value, Tensor):
                constants[output] = _derived(node, source, value)
                budget -= value.numel()
        computed[key] = node.outputs
    constants.update({alias: constants[name] for alias, name in renamed.items() if alias in graph.outputs})
    return replace(graph, nodes=tuple(left), constants=constants).needed_for(graph.outputs)


def _derived(node: Node, source: Constant | None, value: Tensor) -> Constant:
    """Return the constant ``value`` that ``node`` computes, with what is still known of the tensor of the file."""
    if source is None or node.op not in _READ_FROM_STORED:
        return Constant(value=value)
    order = source.order
    if node.op == "Transpose":
        permutation = node.attributes.get("perm", range(value.ndim)[::-1])
        kept = len(order) == value.ndim and not source.reshaped
        order = tuple(order[axis] for axis in permutation) if kept else ()
    else:
        kept = node.op in _RESHAPING or (node.op == "Cast" and value.dtype == source.value.dtype)
    return replace(
        source,
        value=value,
        initializer=source.initializer if kept else "",
        order=order if kept else (),
        reshaped=source.reshaped or node.op in _RESHAPING,
    )


def fix_known_values(graph: TorchGraph, facts: infer.Facts) -> TorchGraph:
    """Turn values that are known and the same at every batch into constants; drop what only led to them."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        found = {name: [values[name] for _, values in facts if name in values] for name in node.outputs if name}
        if all(map(_is_known, found.values())):
            constants.update({name: Constant(value=first) for name, (first, *_) in found.items()})
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _is_known(values: Sequence[Tensor]) -> bool:
    return bool(values) and not any(each.is_meta or not torch.equal(each, values[0]) for each in values)


def take_branches(graph: TorchGraph) -> TorchGraph:
    """Return ``graph`` with each ``If`` whose condition follows from constants and shapes replaced by its branch.

    Older exports write ``squeeze`` and comparisons of lengths so. The branch is chosen for the number and size of
    images that the file declares.

    Raises InvalidCheckpoint where a value before one is larger than any memory.
    """
    if not any(each.op == "If" for each in graph.nodes):
        return graph
    values = infer.start(graph, infer.input_shapes(graph, infer.batch_of(graph) or 1, USUAL_SIZES[:1] * 2))
    constants, folding = dict(graph.constants), infer.Folding()
    pending, nodes, taken = deque(graph.nodes), list[Node](), 0
    while pending:
        node = pending.popleft()
        body = _branch(node, values)
        if body is not None:
            taken += 1
            constants.update(body.constants)
            values |= {name: each.value for name, each in body.constants.items()}
            alias = replace(node, op="Identity", attributes={}, captured=())  # by the name that the rest reads
            named = [
                replace(alias, name=f"{node.name}/{output}", inputs=(value,), outputs=(output,))
                for output, value in zip(node.outputs, body.outputs, strict=True)
                if output
            ]
            pending.extendleft(reversed([*body.nodes, *named]))
            continue
        nodes.append(node)
        if all(name in values for name in node.inputs if name):  # behind what is not read nothing is known
            with suppress(UnsupportedModel):
                infer.advance([node], values, folding)
    if not taken:
        return graph
    count = f"{taken} branches (If)" if taken > 1 else "A branch (If)"
    decided = f"{count} of the file: what is taken for images of its shape is read as part of the network."
    return replace(graph, nodes=tuple(nodes), constants=constants, notes=(*graph.notes, decided))


def _branch(node: Node, values: infer.Values) -> TorchGraph | None:
    """Return the branch that ``node`` runs; None where it is another operator, or its condition is not known."""
    condition = values.get(node.inputs[0]) if node.op == "If" and node.inputs else None
    if condition is None or condition.is_meta or condition.numel() != 1:
        return None
    body = node.attributes.get(_BRANCHES[bool(condition)])
    return body if isinstance(body, TorchGraph) and len(body.outputs) == len(node.outputs) else None


def free_batch(
    graph: TorchGraph, reference: infer.Values, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[TorchGraph, infer.Values]:
    """Return ``graph`` rewritten so that it takes inputs of ``shapes``, with its values for them.

    A node that would not follow, such as a Reshape or the Concat of a class token, is rewritten from the shapes that it
    has for one image, for which ``graph`` was exported and has the values ``reference``; ``shapes`` are for two.

    Raises UnsupportedModel where a node does not follow, or an output is not one per image.
    """
    graph = _without_strides(graph, reference)
    freeing = _Freeing(reference=reference, values=infer.start(graph, shapes), constants=dict(graph.constants))
    nodes: list[Node] = []
    folding = infer.Folding()
    for node in graph.nodes:
        followed = list(freeing.followed(node))
        infer.advance(followed, freeing.values, folding)
        nodes.extend(followed)
    for name in graph.outputs:
        old, new = reference[name].shape, freeing.values[name].shape
        if not old or tuple(new) != (2 * old[0], *old[1:]):
            raise UnsupportedModel(f"The output “{name}” is {list(new)} for two images, not one per image.")
    return replace(graph, nodes=tuple(nodes), constants=freeing.constants), freeing.values


def _without_strides(graph: TorchGraph, reference: infer.Values) -> TorchGraph:
    """Return ``graph`` without each Gather of a whole tensor in its own order: ``as_strided`` of the newer exporter."""
    makers = graph.producers()

    def plain(node: Node) -> Node:
        flat = makers.get(node.inputs[0]) if node.op == "Gather" else None
        indices = graph.constants.get(node.inputs[1]) if flat is not None and flat.op == "Reshape" else None
        if flat is None or indices is None or reference[node.inputs[0]].ndim != 1:
            return node
        places = torch.arange(reference[node.inputs[0]].numel()).reshape(reference[flat.inputs[0]].shape)
        if not torch.equal(indices.value.to(torch.int64), places):
            return node
        return replace(node, op="Identity", inputs=flat.inputs[:1], attributes={})

    return replace(graph, nodes=tuple(map(plain, graph.nodes))).needed_for(graph.outputs)


@dataclass(slots=True, kw_only=True)
class _Freeing:
    reference: infer.Values
    values: infer.Values
    constants: dict[str, Constant]
    added: int = 0

    def followed(self, node: Node) -> Iterator[Node]:
        """Yield ``node``, or what takes its place."""
        grown = {name: axis for name in node.inputs if name and (axis := self._grown(name)) is not None}
        if node.op == "Concat" and grown:
            yield from self._joined(node, *next(iter(grown.items())))
        elif node.op in ("Reshape", "Expand", "Resize") and node.inputs[0] in grown:
            change = {"Reshape": self._reshaped, "Expand": self._expanded, "Resize": self._resized}[node.op]
            yield change(node, grown[node.inputs[0]])
        else:
            yield node

    def _grown(self, name: str) -> int | None:
        """Return the axis that grew with the images; None where there is not exactly one."""
        old, new = self.reference[name].shape, self.values[name].shape
        axes = [axis for axis, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
        return axes[0] if len(old) == len(new) and len(axes) == 1 else None

    def _reshaped(self, node: Node, axis: int) -> Node:
        """Give the −1 to the axis of the images: that with as many elements before it as in the input."""
        before = math.prod(self.reference[node.inputs[0]].shape[:axis])
        target = list(self.reference[node.outputs[0]].shape)
        places = [place for place in range(len(target)) if math.prod(target[:place]) == before]
        return self._with(node, 1, [*target[: places[0]], -1, *target[places[0] + 1 :]]) if places else node

    def _expanded(self, node: Node, axis: int) -> Node:
        lengths = self.values[node.inputs[1]]
        place = lengths.numel() - self.reference[node.inputs[0]].ndim + axis
        if lengths.is_meta or place < 0:
            return node
        stored = lengths.tolist()
        return self._with(node, 1, [*stored[:place], 1, *stored[place + 1 :]])

    def _resized(self, node: Node, axis: int) -> Node:
        sizes = self.constants.get("".join(node.inputs[3:4]))
        if sizes is None or node.attributes.get("axes") is not None or sizes.value.numel() <= axis:
            return node
        axes = [each for each in range(sizes.value.numel()) if each != axis]
        changed = self._with(node, 3, sizes.value[axes].tolist())
        return replace(changed, attributes={**node.attributes, "axes": axes}, version=max(18, node.version))

    def _joined(self, node: Node, like: str, axis: int) -> Iterator[Node]:
        """Repeat what is the same for every image, such as a class token, for the images of ``like``."""
        inputs = []
        for name in node.inputs:
            if self._grown(name) is None and self.values[name].shape[axis] == 1:
                repeated = self._name("repeated")
                added = replace(node, name=repeated, op="ExpandLike", outputs=(repeated,), scope="")
                yield replace(added, inputs=(name, like), attributes={"axis": axis})
                name = repeated
            inputs.append(name)
        yield replace(node, inputs=tuple(inputs))

    def _with(self, node: Node, position: int, numbers: list[int]) -> Node:
        name = self._name("shape")
        self.constants[name] = Constant(value=torch.tensor(numbers, dtype=torch.int64))
        self.values[name] = self.constants[name].value
        return replace(node, inputs=(*node.inputs[:position], name, *node.inputs[position + 1 :]))

    def _name(self, what: str) -> str:
        self.added += 1
        return f"free batch {what} {self.added}"  # has a space: no exporter names a value so


def merge_activations(graph: TorchGraph) -> TorchGraph:
    """Merge each GELU, hard swish and swish (SiLU) of several nodes into one node, recognised by its values.

    One step takes a fraction of the time, and a layer's output before it has one reader, so that estimates of the quick
    scan go through the activation as it is and not by its slope.

    Nodes before a product are added, the last first, while they work on each element and read constants of one number
    else; wherever all that is left to compute is one value x, the function of x is compared with those known.
    """
    makers = graph.producers()
    places = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}

    def merged(node: Node) -> Node:
        parts, read = [node], _variables(node, graph)
        while node.op in ("Mul", "Div") and len(parts) <= 6:  # x · (1 + erf(x / √2)) · 0.5 has five
            known = _known(parts, next(iter(read)), graph) if len(read) == 1 else None
            if known is not None:
                op, version = known
                return replace(node, op=op, version=version, inputs=tuple(read), attributes={})
            last = max(read, key=lambda name: places.get(name, -1), default="")
            maker = makers.get(last)
            if maker is None or maker.op not in _PARTS:
                break
            parts.append(maker)
            read = read - {last} | _variables(maker, graph)
        return node

    return replace(graph, nodes=tuple(map(merged, graph.nodes))).needed_for(graph.outputs)


def _variables(node: Node, graph: TorchGraph) -> set[str]:
    """Return what a node reads besides constants of one number."""
    return {name for name in node.inputs if name and not _is_number(name, graph)}


def _is_number(name: str, graph: TorchGraph) -> bool:
    constant = graph.constants.get(name)
    return constant is not None and constant.value.numel() == 1 and constant.value.is_floating_point()


def _known(parts: Sequence[Node], source: str, graph: TorchGraph) -> tuple[str, int] | None:
    """Return the operator that computes from ``source`` what ``parts``, the last node first, do; None for others."""
    numbers = {name for node in parts for name in node.inputs if _is_number(name, graph)}
    values = {name: graph.constants[name].value.double().reshape(()) for name in numbers} | {source: _ARGUMENTS}
    for node in reversed(parts):
        values[node.outputs[0]] = infer.evaluate(node, [values.get(name) for name in node.inputs])[0]
    found = values[parts[0].outputs[0]]
    if found.shape != _ARGUMENTS.shape:
        return None
    # Constants are as files have them: 1.41421 for √2 too, but none of 16 bits.
    alike = (known for known in _KNOWN if torch.allclose(found, known[2](_ARGUMENTS), rtol=0, atol=1e-5))
    return next(((op, version) for op, version, _ in alike), None)
