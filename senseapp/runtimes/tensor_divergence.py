"""Differences between two ONNX files: matched tensors inside of both, in order, on a few images.

Tensors are matched by name; where few names are kept, products (convolutions and matrix products) are matched in their
order, by operator and shape of the weight. In one of both files norms, activation functions and rounding may be part of
the node before them, so the result behind these is compared. Files of integer operators (QLinearConv) are not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np
import onnx
from onnx import NodeProto
from torch import Tensor

from senseapp.core.texts import printable_text
from senseapp.networks.onnx.graph import Array, OnnxGraph
from senseapp.networks.onnx.read import parsed_model
from senseapp.records.check import APART, TensorDifference, TensorDivergence
from senseapp.runtimes.onnxruntime.runtime import ForeignFile

_AT_ONCE, _MOST = 32, 256  # tensors of one run, and of a file: all of a run are held in memory
_PRODUCTS = {
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv"), "Conv"),
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm"), "MatMul"),
    "ConvTranspose": "ConvTranspose",
}
_STORED_BEHIND = frozenset({"Identity", "Cast", "Transpose", "QuantizeLinear", "DequantizeLinear", "Mul", "Reshape"})
"""Operators between a stored weight and its product."""
_FOLLOWED = frozenset({"BatchNormalization", "Relu", "Clip", "QuantizeLinear", "DequantizeLinear"})
"""Operators that quantizers and simplifiers make part of the one before, or insert behind it."""
_BY_CONSTANTS = frozenset({"Mul", "Add", "Cast"})
"""The same where all other inputs are stored."""

Pair = tuple[tuple[str, str], NodeProto]
"""What the reference and the candidate call a tensor, and the node of the reference that it begins with."""


class _Values(OnnxGraph):
    """The graph of a file, with the values of it that can be compared."""

    def end(self, name: str, known: Collection[str]) -> str:
        """Return the last result of what follows ``name`` alone and is computed with it in a file without ``known``."""
        while self.is_read_once(name) and self._is_followed(reader := self.readers(name)[0]):
            if reader.output[0] in known:
                break
            name = reader.output[0]
        return name

    def _is_followed(self, node: NodeProto) -> bool:
        stored = sum(self.tensor(name) is not None for name in node.input)
        return node.op_type in _FOLLOWED or (node.op_type in _BY_CONSTANTS and stored == len(node.input) - 1)

    def products(self) -> list[tuple[tuple[str, tuple[int, ...]], NodeProto]]:
        """Return products with weights, in order, by kind and shape of the weight."""
        found = []
        for node in self.nodes:
            kind = _PRODUCTS.get(node.op_type)
            weight = None if kind is None else self.tensor(self.origin(node.input[1], _STORED_BEHIND))
            if kind is not None and weight is not None:
                found.append(((kind, tuple(sorted(weight.dims) if kind == "MatMul" else weight.dims)), node))
        return found


def _difference(pair: Pair, mine: Mapping[str, Array], other: Mapping[str, Array]) -> TensorDifference | None:
    """Return how far a tensor differs; None where it is not known in both files in one shape."""
    (name, its), node = pair
    values = mine.get(name)
    arranged = _arranged(values, other.get(its)) if values is not None and values.size > 1 else None
    if values is None or arranged is None:
        return None
    count = min(len(values), len(arranged))
    return TensorDifference(
        name=printable_text(name),
        other="" if its == name else printable_text(its),
        operator=node.op_type,
        node=node.name,
        shape=tuple(values.shape),
        difference=relative_difference(values[:count], arranged[:count]),
    )


def tensor_divergence(
    reference: bytes, candidate: bytes, images: tuple[Tensor, Tensor], *, progress: Callable[[str], None]
) -> TensorDivergence | None:
    """Return how far matched tensors of two files differ; None where few can be matched, or none can be run.

    ``images``, (N, C, H, W), are the same pictures as each of the files takes them.
    """
    ours, theirs = (_Values(parsed_model(content)) for content in (reference, candidate))
    mine, others = ours.products(), theirs.products()
    pairs = _by_name(ours, theirs)
    matched_by: Literal["name", "order"] = "name"
    named = {node.output[0] for _, node in pairs}
    if sum(node.output[0] in named for _, node in mine) < 0.5 * len(mine):
        pairs, matched_by = _in_order(ours, mine, theirs, others), "order"
    step = max(1, -(-len(pairs) // _MOST))
    pairs = [pair for place, pair in enumerate(pairs) if place % step == 0 or place == len(pairs) - 1]
    found: list[TensorDifference] = []
    for first in range(0, len(pairs), _AT_ONCE):
        some = pairs[first : first + _AT_ONCE]
        progress(f"Comparing tensors inside, {len(found)} of {len(pairs)}")
        before, after = (
            _computed(content, [names[side] for names, _ in some], images[side])
            for side, content in enumerate((reference, candidate))
        )
        found += [each for pair in some if (each := _difference(pair, before, after)) is not None]
    told = _without_other_values(found)
    return TensorDivergence(tensors=told, matched_by=matched_by, images=len(images[0])) if told else None


def _without_other_values(found: Sequence[TensorDifference]) -> tuple[TensorDifference, ...]:
    """Return tensors without those that differ although the next product agrees: these are other values."""
    told, next_product = list[TensorDifference](), float("inf")
    for each in reversed(found):
        if each.difference < APART or each.operator in _PRODUCTS or next_product >= APART / 2:
            told.append(each)
        next_product = each.difference if each.operator in _PRODUCTS else next_product
    return tuple(reversed(told))


def _by_name(ours: _Values, theirs: _Values) -> list[Pair]:
    computed, others = (
        {name: node for node in graph.nodes if node.op_type != "Constant" for name in node.output if name}
        for graph in (ours, theirs)
    )
    pairs: dict[str, Pair] = {}
    for name, node in computed.items():
        if name in others:
            end = ours.end(name, others)
            pairs.setdefault(end, ((end, theirs.end(name, computed)), node))
    return list(pairs.values())


def _in_order(
    ours: _Values, mine: Sequence[tuple[object, NodeProto]], theirs: _Values, others: Sequence[tuple[object, NodeProto]]
) -> list[Pair]:
    keys = [key for key, _ in mine], [key for key, _ in others]
    matched = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_matching_blocks()
    nodes = [(mine[block.a + place][1], others[block.b + place][1]) for block in matched for place in range(block.size)]
    return [((ours.end(one.output[0], ()), theirs.end(other.output[0], ())), one) for one, other in nodes]


def _computed(content: bytes, names: Sequence[str], images: Tensor) -> dict[str, Array]:
    """Return real numbers of a file by name; other values, and those that the file cannot return, are left out."""
    model, names = parsed_model(content), list(dict.fromkeys(names))
    declared = {each.name for each in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    opened = ForeignFile(model.SerializeToString(), optimised=False)
    found: Mapping[str, Any] = opened.arrays(names, opened.fed(images))
    real = {name: each for name, each in found.items() if isinstance(each, np.ndarray) and each.dtype.kind == "f"}
    return {name: each.astype(np.float64) for name, each in real.items()}


def _arranged(mine: Array, other: Array | None) -> Array | None:
    """Return ``other`` in the order of axes of ``mine``, of as many images; None where shapes do not fit."""
    if other is None or other.ndim != mine.ndim:
        return None
    turned = (other.transpose(0, 3, 1, 2), other.transpose(0, 2, 3, 1)) if other.ndim == 4 else ()
    return next((each for each in (other, *turned) if each.shape[1:] == mine.shape[1:]), None)


def relative_difference(mine: Array, other: Array) -> float:
    """Return ‖other − mine‖ / ‖mine‖; infinite where a number of the other is not finite, 0 where both are nothing.

    >>> relative_difference(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    0.1
    """
    if not np.isfinite(other).all():
        return float("inf") if np.isfinite(mine).all() else 0.0
    apart, size = float(np.linalg.norm(other - mine)), float(np.linalg.norm(mine))
    if apart == 0:
        return 0.0
    return apart / size if size else float("inf")
