"""Differences between two ONNX files: matched tensors inside of both, in order, on a few images.

Tensors are matched by name, which quantizers, converters and simplifiers keep for most; where they are not kept, the
results of products (convolutions and matrix products) are matched in their order, by operator and shape of the weight.
A tensor that is quantized is compared as its integers stand for. Where a norm or an activation function is folded into
one of both files, its result is compared. A tensor whose downstream tensors all match is a different value of the
same name, and skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto
from torch import Tensor

from senseapp.core.texts import printable_text
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.read import parsed_model
from senseapp.records.check import APART, TensorDifference, TensorDivergence
from senseapp.runtimes.foreign import relative_difference
from senseapp.runtimes.onnxruntime.foreign import OnnxFile

_AT_ONCE = 32  # tensors of one run; all of them for a few images are held in memory
_PRODUCTS = {
    "Conv": ("Conv", "ConvInteger", "QLinearConv", "FusedConv", "NhwcConv"),
    "ConvTranspose": ("ConvTranspose", "QLinearConvTranspose"),
    "MatMul": (
        *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "QGemm", "FusedMatMul", "FusedGemm"),
        *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits"),
    ),
}
_KIND = {op: kind for kind, ops in _PRODUCTS.items() for op in ops}
# place among the inputs, as onnxruntime's contrib operators number them
_WEIGHT_AT = {"QLinearConv": 3, "QLinearConvTranspose": 3, "QLinearMatMul": 3, "QGemm": 3}
_SCALES_AT = {  # inputs that are scale and zero point of the output
    **{"QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6, "QLinearConvTranspose": 6},
    **{"QLinearAdd": 6, "QLinearMul": 6, "QGemm": 7, "QLinearConcat": 0},
    **{"QLinearGlobalAveragePool": 3, "QLinearAveragePool": 3, "QLinearLeakyRelu": 3, "QLinearSigmoid": 3},
}
_PLAIN = frozenset({"Constant", "Shape", "Gather", "Unsqueeze", "Squeeze", "Range", "ConstantOfShape", "Size"})
"""Operators whose results are mostly sizes, not features."""
_ALL_MOVED = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that return every number that they read: where their input is apart, so is what they return."""
_PASSED_ON = _ALL_MOVED | {"MaxPool", "Relu", "Clip"}
"""Operators whose integer results have the scale of their input."""
_FOLDED = frozenset({"BatchNormalization", "Relu", "Clip"})
"""Operators that quantizers and simplifiers make part of the one before."""
_FOLLOWED = frozenset({"Cast", "Mul", "Add", "BatchNormalization", "QuantizeLinear", "DequantizeLinear"})

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value to ask a file for, and what its integers are multiplied with, if it has any."""

    name: str
    scale: Array | None = None
    zero_point: Array | None = None

    def real(self, found: Array) -> Array:
        if self.scale is None:
            return found.astype(np.float64)
        zero = 0.0 if self.zero_point is None else self.zero_point.astype(np.float64)
        return (found.astype(np.float64) - zero) * self.scale.astype(np.float64)


class _ValueGraph(OnnxGraph):
    """The graph of a file, with the values of it that can be compared."""

    def value(self, name: str) -> _Value | None:
        """Return the value to compare for ``name``: its dequantized form if it is rounded; None if it is unknown."""
        if self.maker(name) is None:
            name = f"{name}_quantized"  # as onnxruntime's quantizer calls it where it rewrites operators
            return self._integers(name)
        readers = self.readers(name)
        if readers and all(each.op_type == "QuantizeLinear" for each in readers):
            back = [each for each in self.readers(readers[0].output[0]) if each.op_type == "DequantizeLinear"]
            if back:  # ranges of rounding also cut: an activation function may be left to them
                return _Value(back[0].output[0])
            return self._integers(readers[0].output[0])
        return _Value(name)

    def has(self, name: str) -> bool:
        """Whether something of that name is computed, as numbers or as integers."""
        return self.maker(name) is not None or self.maker(f"{name}_quantized") is not None

    def folded_end(self, name: str, other: _ValueGraph) -> str:
        """Return the result of what reads ``name`` alone and is no value of its own in ``other``; else ``name``."""
        while self.is_read_once(name):
            reader = self.readers(name)[0]
            if reader.op_type not in _FOLDED or other.has(reader.output[0]):
                break
            name = reader.output[0]
        return name

    def next_of(self, name: str, wanted: Collection[str]) -> set[str]:
        """Return the nearest of the values ``wanted`` that are computed from ``name``."""
        found: set[str] = set()
        seen, pending = {name}, [name]
        while pending:
            for node in self.readers(pending.pop()):
                for made in set(node.output) - seen:
                    seen.add(made)
                    if made in wanted:
                        found.add(made)
                    else:
                        pending.append(made)
        return found

    def _integers(self, name: str) -> _Value | None:
        """Return a value with the constants that its integers are scaled with."""
        node = self.maker(name)
        while node is not None and node.op_type in _PASSED_ON and self.maker(node.input[0]) is not None:
            node = self.maker(node.input[0])
        at = None if node is None else _SCALES_AT.get(node.op_type)
        if node is None or at is None or len(node.input) <= at:
            return None
        scale, zero = self.array(node.input[at]), "".join(node.input[at + 1 : at + 2])
        return None if scale is None else _Value(name, scale, self.array(zero))

    def lengths(self, pair: _Pair, values: Mapping[str, Array]) -> list[int]:
        """Return the lengths of the parts of a joined tensor; empty for others, and where one is unknown."""
        shapes = {name: tuple(held.dims) for name in pair.parts if (held := self.tensor(name)) is not None}
        shapes |= {name: values[name].shape for name in pair.parts if name in values}
        known = pair.axis != 0 and shapes.keys() >= set(pair.parts)
        return [shapes[name][pair.axis] for name in pair.parts] if known else []

    def products(self) -> list[tuple[tuple[str, tuple[int, ...]], NodeProto]]:
        """Return products with weights, in order, by kind and shape of the weight."""
        found = []
        for node in self.nodes:
            kind = _KIND.get(node.op_type)
            at = _WEIGHT_AT.get(node.op_type, 1)
            if kind is None or len(node.input) <= at:
                continue
            weight = self._weight(node.input[at])
            if weight is not None:
                shape = tuple(sorted(weight)) if kind == "MatMul" else weight
                found.append(((kind, shape), node))
        return found

    def _weight(self, name: str) -> tuple[int, ...] | None:
        for _ in range(4):  # behind casts, transposes and a dequantization
            held, maker = self.tensor(name), self.maker(name)
            if held is not None:
                return tuple(held.dims)
            if maker is None or not maker.input:
                return None
            name = maker.input[0]
        return None

    def result(self, node: NodeProto) -> _Value | None:
        """Return the value of a product with bias, scale and normalisation, before anything else reads it."""
        name = node.output[0]
        if name in self.outputs:
            return self.value(name)
        while self.is_read_once(name) and self._is_followed(self.readers(name)[0], name):
            name = self.readers(name)[0].output[0]
        return self._integers(name) if self._is_integer(name) else self.value(name)

    def _is_followed(self, node: NodeProto, name: str) -> bool:
        others = [each for each in node.input if each and each != name]
        scales = all(self.tensor(each) is not None or self._is_scale(each) for each in others)
        return node.op_type in _FOLLOWED and scales

    def _is_scale(self, name: str) -> bool:
        """Whether a value is a product of the scale of the input and that of the weight, as dynamic ranges need."""
        node = self.maker(name)
        return node is not None and node.op_type == "Mul" and any(self.tensor(each) is not None for each in node.input)

    def _is_integer(self, name: str) -> bool:
        node = self.maker(name)
        return node is not None and node.op_type in (
            "QuantizeLinear",
            "QLinearConv",
            "QLinearMatMul",
            "QLinearConvTranspose",
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    ours: _Value
    theirs: _Value
    name: str
    operator: str
    node: str
    parts: tuple[str, ...] = ()
    axis: int = 0

    @classmethod
    def of(cls, ours: _Value, theirs: _Value, name: str, node: NodeProto) -> _Pair:
        """Return the pair of what ``node`` computes; what it joins is compared part by part."""
        parts = tuple(node.input) if node.op_type == "Concat" else ()
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        return cls(ours, theirs, name, node.op_type, node.name, parts, axis)


def tensor_divergence(
    reference: bytes,
    candidate: bytes,
    images: tuple[Tensor, Tensor],
    *,
    progress: Callable[[str], None],
) -> TensorDivergence | None:
    """Return how far matched tensors of two files differ; None where none can be matched or run.

    Args:
        reference: content of the one file.
        candidate: content of the other.
        images: (N, C, H, W) as each of them takes them, the same pictures.
        progress: told before each part.
    """
    ours, theirs = (_ValueGraph(parsed_model(content)) for content in (reference, candidate))
    pairs, matched_by = _by_name(ours, theirs), "name"
    named = {pair.name for pair in pairs}
    products = [node.output[0] for _, node in ours.products()]
    kept = sum(name in named for name in products)
    if not pairs or kept < 0.5 * len(products):  # share of the products of the reference that must be found by name
        in_order = _in_order(ours, theirs)
        if len(in_order) > kept:
            pairs, matched_by = in_order, "order"
    step = max(1, -(-len(pairs) // 256))  # compared: spread over larger networks, so that memory and time are bounded
    pairs = [pair for place, pair in enumerate(pairs) if place % step == 0 or place == len(pairs) - 1]
    found: list[TensorDifference] = []
    for first in range(0, len(pairs), _AT_ONCE):
        some = pairs[first : first + _AT_ONCE]
        progress(f"Comparing tensors inside, {len(found)} of {len(pairs)}")
        parts = [_Value(name) for pair in some for name in pair.parts if ours.maker(name) is not None]
        mine = _computed(reference, [*(pair.ours for pair in some), *parts], images[0])
        other = _computed(candidate, [pair.theirs for pair in some], images[1])
        found += [
            _difference(pair, mine[pair.ours.name], other[pair.theirs.name], ours.lengths(pair, mine))
            for pair in some
            if _is_alike(mine.get(pair.ours.name), other.get(pair.theirs.name))
        ]
    by: Literal["name", "order"] = "name" if matched_by == "name" else "order"
    told = _meant_alike(found, ours)
    return TensorDivergence(tensors=told, matched_by=by, images=len(images[0])) if told else None


def _meant_alike(found: Sequence[TensorDifference], graph: _ValueGraph) -> tuple[TensorDifference, ...]:
    """Return tensors without those that differ although everything after them agrees again.

    What only moves the numbers of a tensor differs as that does: over all of a joined one, a small part counts little.
    """
    places, moved = {each.name: each for each in found}, list[TensorDifference]()
    for each in found:
        node = graph.maker(each.name)
        before = places.get(node.input[0]) if node is not None and each.operator in _ALL_MOVED else None
        if before is not None and before.difference > each.difference:
            each = places[each.name] = replace(each, difference=before.difference)
        moved.append(each)
    found, agrees = moved, dict[str, bool]()
    for each in reversed(found):
        after = graph.next_of(each.name, places)
        agrees[each.name] = each.difference < APART / 2 or (
            bool(after) and all(agrees.get(name, False) for name in after)
        )
    return tuple(each for each in found if each.difference < APART or not agrees[each.name])


def _by_name(ours: _ValueGraph, theirs: _ValueGraph) -> list[_Pair]:
    pairs: dict[str, _Pair] = {}
    for node in ours.nodes:
        for name in filter(None, node.output):
            if node.op_type in _PLAIN or not theirs.has(name):
                continue
            end = ours.folded_end(name, theirs)
            mine, other = ours.value(end), theirs.value(theirs.folded_end(name, ours))
            if mine is not None and other is not None:
                pairs.setdefault(end, _Pair.of(mine, other, end, node))
    return list(pairs.values())


def _in_order(ours: _ValueGraph, theirs: _ValueGraph) -> list[_Pair]:
    mine, others = ours.products(), theirs.products()
    keys = [key for key, _ in mine], [key for key, _ in others]
    pairs = []
    for block in SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_matching_blocks():
        for place in range(block.size):
            node, other = mine[block.a + place][1], others[block.b + place][1]
            values = ours.result(node), theirs.result(other)
            if values[0] is not None and values[1] is not None:
                pairs.append(_Pair.of(values[0], values[1], node.output[0], node))
    return pairs


def _computed(content: bytes, values: Sequence[_Value], images: Tensor) -> dict[str, Array]:
    """Return values of a file by name, as real numbers; those that the file cannot return are left out."""
    model = parsed_model(content)
    declared = {each.name for each in model.graph.output}
    names = list(dict.fromkeys(value.name for value in values))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in declared)
    opened = OnnxFile(model.SerializeToString(), extra=names)
    found: Mapping[str, Array] = opened.arrays(names, opened.fed(images))
    return {
        value.name: value.real(found[value.name])
        for value in values
        if isinstance(found[value.name], np.ndarray) and found[value.name].dtype.kind in "fui"
    }


def _is_alike(mine: Array | None, other: Array | None) -> bool:
    return mine is not None and other is not None and mine.size > 1 and _arranged(mine, other) is not None


def _arranged(mine: Array, other: Array) -> Array | None:
    """Return ``other`` in the order of axes of ``mine``, of as many images; None where shapes do not fit."""
    if other.ndim == mine.ndim == 4 and other.shape != mine.shape:
        turned = other.transpose(0, 3, 1, 2), other.transpose(0, 2, 3, 1)
        other = next((each for each in turned if each.shape[1:] == mine.shape[1:]), other)
    return other if other.shape[1:] == mine.shape[1:] and other.ndim == mine.ndim else None


def _difference(pair: _Pair, mine: Array, other: Array, lengths: Sequence[int]) -> TensorDifference:
    arranged = _arranged(mine, other)
    assert arranged is not None
    count = min(len(mine), len(arranged))
    cuts = list(itertools.accumulate(lengths[:-1]))
    sides = zip(*(np.split(each[:count], cuts, axis=pair.axis) for each in (mine, arranged)), strict=True)
    return TensorDifference(
        name=printable_text(pair.name),
        other="" if pair.theirs.name == pair.name else printable_text(pair.theirs.name),
        operator=pair.operator,
        node=pair.node,
        shape=tuple(mine.shape),
        difference=max(relative_difference(*side) for side in sides),
    )
