"""Outputs of a graph that can be measured: before box selection and branches, and before a final softmax."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.infer import Values
from senseapp.networks.onnx.torch_graph import Node, TorchGraph, UnreadNode
from senseapp.records.inputs import OutputFacts

CONTROL_FLOW = frozenset({"Loop", "If", "Scan"})
"""Barriers that are none where onnxruntime computes them."""
_BARRIERS = frozenset(
    {
        *("NonMaxSuppression", "TopK", "NonZero", "Unique", "Compress", "ArgMax", "ArgMin", "Multinomial"),
        *CONTROL_FLOW,
        *("SequenceConstruct", "SequenceEmpty", "SplitToSequence", "StringNormalizer"),
    }
)
_SAME_NUMBERS = frozenset(
    {
        *("Gather", "Slice", "Reshape", "Cast", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Where", "Expand", "GatherND"),
        *("Concat", "ReduceMax", "GatherElements", "Tile", "Clip", "Dropout"),
    }
)
_PROBABILITIES = frozenset({"Softmax", "Sigmoid"})
_PASSED = frozenset({"Identity", "Reshape", "Flatten", "Cast", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCut:
    """What remains of a graph's outputs, and those that are ``lost`` behind the ``barrier`` nearest to the input.

    Candidates are outputs of the file that can be measured, values that others were cut at, and logits of both.
    """

    candidates: tuple[OutputFacts, ...]
    lost: tuple[str, ...] = ()
    barrier: Node | None = None


def cut(graph: TorchGraph) -> GraphCut:
    """Return candidates for the outputs of ``graph``.

    Raises UnsupportedModel where nothing but the input lies before what cannot be differentiated.
    """
    behind, barrier = set[str](), None
    for node in graph.nodes:
        if (node.op in _BARRIERS and not node.source) or not behind.isdisjoint(node.inputs):
            barrier = barrier or node
            behind.update(filter(None, node.outputs))
    makers = graph.producers()
    lost = tuple(name for name in graph.outputs if name in behind)
    found = [OutputFacts(name=name, kind="output", shape=()) for name in graph.outputs if name not in behind]
    if lost:
        found += [OutputFacts(name=name, kind="cut", shape=()) for name in _frontier(graph, makers, behind)]
    if not found:
        named = "" if barrier is None else f" {barrier.title}"
        kind = UnreadNode if barrier is not None and barrier.op in CONTROL_FLOW else UnsupportedModel
        raise kind(f"Everything that the file computes lies behind node{named}, which cannot be measured.")
    logits = [each for candidate in found if (each := _logits(candidate.name, makers, graph)) is not None]
    return GraphCut(candidates=(*found, *logits), lost=lost, barrier=barrier)


def _frontier(graph: TorchGraph, makers: Mapping[str, Node], behind: set[str]) -> Iterable[str]:
    """Return values before the barriers that lose only selection and order, but those that outputs hold already."""
    known = {each.name for each in graph.inputs} | (set(graph.outputs) - behind)
    pending = [
        name
        for node in graph.nodes
        if not behind.isdisjoint(node.outputs)
        for name in node.inputs
        if name and name not in behind
    ]
    found: dict[str, None] = {}
    seen: set[str] = set()
    while pending:
        name = pending.pop(0)
        if name in seen or name in graph.constants or name in known or name not in makers:
            continue
        seen.add(name)
        node = makers[name]
        if node.op in _SAME_NUMBERS:
            several = node.op in ("Concat", "Where", "And", "Or") or node.op.startswith(("Greater", "Less"))
            pending.extend(node.inputs if several else node.inputs[:1])
        elif node.op not in ("Shape", "Size") and not (node.op in _PROBABILITIES and node.inputs[0] in known):
            found[name] = None
    return found


def _logits(name: str, makers: Mapping[str, Node], graph: TorchGraph) -> OutputFacts | None:
    value = name
    while (node := makers.get(value)) is not None and node.op in _PASSED:
        value = node.inputs[0]
    if node is None or node.op not in _PROBABILITIES or node.inputs[0] in graph.constants:
        return None
    return OutputFacts(name=node.inputs[0], kind="logits", shape=(), of=name, operator=node.op)


def with_shapes(candidates: Iterable[OutputFacts], values: Values) -> tuple[OutputFacts, ...]:
    """Return ``candidates`` with their shapes, without constants and integers."""
    held = [(each, values[each.name]) for each in candidates if each.name in values]
    measured = [(each, value) for each, value in held if value.is_meta and value.is_floating_point()]
    return tuple(replace(each, shape=tuple(value.shape)) for each, value in measured)


def usual_choice(candidates: Sequence[OutputFacts], batch: int) -> tuple[str, ...]:
    """Return the outputs to measure where nobody chooses: all, logits in place of class probabilities.

    Sigmoids in boxes and masks stay: only a softmax, and the sigmoid of one row of numbers for each of ``batch``
    images, are of classes.
    """
    logits = {each.of: each for each in candidates if each.kind == "logits"}
    chosen = []
    for each in candidates:
        if each.kind == "logits":
            continue
        if (before := logits.get(each.name)) is not None:
            first, *rest = before.shape or (0,)
            is_row_per_image = first == batch and rest and sum(length > 1 for length in rest) <= 1
            each = before if before.operator == "Softmax" or is_row_per_image else each
        chosen.append(each.name)
    return tuple(dict.fromkeys(chosen))
