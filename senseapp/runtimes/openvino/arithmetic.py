"""Differences between OpenVINO's int8 kernels and onnxruntime's, written into a QDQ file.

What OpenVINO computes at once is read from the graph that it executes. Its sums of products are exact, as onnxruntime's
are, but

- what is rounded is scaled and shifted before (:mod:`~senseapp.runtimes.openvino.scale_shift`): values halfway between
  two integers, such as pixels in a range from −1 to 1, may go another way;
- a sum of products without a bias is rounded as it is, unscaled: low and high are divided by the scale of each channel,
  and the shift is the first channel's;
- what a convolution rounds before another tensor is added to it, and both are rounded, is kept within the range of the
  integers, and not rounded. It is added in steps of that tensor;
- a constant is added to integers in their steps.

Source: measured with ``tests/reference/test_openvino_arithmetic.py``; OpenVINO, ``common/transformations/src/
transformations/common_optimizations/mul_fake_quantize_fusion.cpp``, ``common/low_precision_transformations/src/
add.cpp``, ``plugins/intel_cpu/src/dnnl_postops_composer.cpp`` (``appendLinear``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.compat.openvino_internals import ExecutedNode, executed_nodes
from senseapp.runtimes.onnxruntime.integer_arithmetic import computed_on_integers
from senseapp.runtimes.openvino.runtime import compiled, read
from senseapp.runtimes.openvino.scale_shift import ONE, Floats, Integers, ScaleShift

_FLOAT = TensorProto.FLOAT
_FUSING = {"Convolution", "FullyConnected", "Deconvolution"}
_LIMITS: dict[int, tuple[np.float32, np.float32]] = {
    kind: (np.float32(limits.min), np.float32(limits.max))
    for kind, limits in ((TensorProto.UINT8, np.iinfo(np.uint8)), (TensorProto.INT8, np.iinfo(np.int8)))
}


def computed_as_in_openvino(content: bytes) -> bytes:
    """Return a QDQ file as a network in float that computes what OpenVINO's kernels do, saturation left aside.

    Raises:
        InvalidSpec: OpenVINO cannot open it.
    """
    model = onnx.load_from_string(content)
    graph = _ArithmeticGraph(model.graph, _executed(content))
    graph.rewrite()
    return computed_on_integers(model.SerializeToString(), multipliers=graph.multipliers)


def _executed(content: bytes) -> list[ExecutedNode]:
    """Return what OpenVINO executes of a file."""
    network = read(content)
    shapes = [[size.get_length() if size.is_static else 1 for size in each.partial_shape] for each in network.inputs]
    return executed_nodes(compiled(network, *shapes, threads=1))


@dataclass(frozen=True, slots=True)
class _Sum:
    """The output of a convolution, which a node of the file rounds, and a tensor that is added to it at once.

    Attributes:
        other: name of the tensor that is added: of its integers, where they stand for values.
        integers: what they stand for; None for floats.
    """

    rounding: NodeProto
    addition: NodeProto
    other: str
    integers: Integers | None

    @property
    def kept(self) -> str:
        """Name of what the convolution adds."""
        return f"{self.rounding.output[0]}.kept"

    @property
    def unit(self) -> Floats:
        """What both tensors are added in steps of."""
        return ONE if self.integers is None else np.asarray(self.integers.step)


class _ArithmeticGraph:
    """A graph in the making.

    Attributes:
        multipliers: what the sums of products are multiplied by, by the name of their node.
    """

    def __init__(self, graph: onnx.GraphProto, executed: list[ExecutedNode]) -> None:
        self._graph = graph
        self._constants = {each.name: each for each in graph.initializer}
        self._nodes = {node.name: node for node in graph.node}
        self._makers = {name: node for node in graph.node for name in node.output}
        at_once = [each.parts for each in executed if each.kind in _FUSING]
        self._alone = {name for each in executed if each.kind == "FakeQuantize" for name in each.parts}
        self._products = dict(self._rounded_products(at_once))
        sums = list(self._sums_at_once(at_once))
        self._kept = {each.rounding.name: each for each in sums}
        self._additions = {each.addition.name: each for each in sums}
        self._units: dict[str, Floats] = {}  # of tensors that are rounded, where they are not values
        self._new: list[NodeProto] = []
        self.multipliers: dict[str, Floats] = {}

    def rewrite(self) -> None:
        """Rewrite every rounding of a tensor in turn, and what is added to one at once."""
        unread = {each.rounding.output[0] for each in self._kept.values()}
        for node in self._graph.node:
            integers = self._integers(node) if node.op_type == "QuantizeLinear" else None
            if node.name in self._additions:
                self._add(self._additions[node.name])
            elif node.op_type == "Add" and (sides := self._integers_and_offset(node)) is not None:
                self._add_offset(node, *sides)
            elif integers is not None:
                self._round(node, integers)
            elif node.op_type != "DequantizeLinear" or node.input[0] not in unread:
                self._new.append(node)
        del self._graph.node[:]
        self._graph.node.extend(self._new)

    def _rounded_products(self, at_once: list[tuple[str, ...]]) -> Iterator[tuple[str, NodeProto]]:
        """Yield the names of roundings, each with the product in int8 that it follows at once."""
        for first, *others in at_once:
            product = self._nodes.get(first)
            if product is None or not self._is_in_int8(product):
                continue
            for node in map(self._nodes.get, others):
                if node is not None and node.op_type == "QuantizeLinear" and node.input[0] in product.output:
                    yield node.name, product

    def _is_in_int8(self, product: NodeProto) -> bool:
        return all(self._source(each) != each for each in product.input)

    def _sums_at_once(self, at_once: list[tuple[str, ...]]) -> Iterator[_Sum]:
        """Yield what is added to the rounded output of a convolution and rounded again at once."""
        for parts in at_once:
            for place, (one, other) in enumerate(pairwise(parts)):
                addition = self._nodes.get(other)
                if one not in self._products or addition is None or addition.op_type != "Add":
                    continue
                rounding = self._nodes[one]
                later = [self._nodes[name].op_type for name in parts[place + 2 :] if name in self._nodes]
                added = [each for each in addition.input if self._source(each) != rounding.output[0]]
                if added and ("QuantizeLinear" in later or self._is_rounded(addition.output[0])):
                    integers = self._meaning(added[0])
                    source = added[0] if integers is None else self._source(added[0])
                    yield _Sum(rounding, addition, source, integers)

    def _source(self, tensor: str) -> str:
        """Return the name of the integers that a tensor undoes the rounding of; its own for others."""
        maker = self._makers.get(tensor)
        return tensor if maker is None or maker.op_type != "DequantizeLinear" else maker.input[0]

    def _meaning(self, tensor: str) -> Integers | None:
        """Return what the integers of :meth:`_source` stand for, where they do for the whole tensor."""
        return None if self._source(tensor) == tensor else self._integers(self._makers[tensor])

    def _integers(self, node: NodeProto) -> Integers | None:
        """Return what the integers of a node that rounds a tensor, or undoes it, stand for; None if of channels."""
        step = self._constants.get(node.input[1])
        kind = self._constants[node.input[2]].data_type if len(node.input) > 2 else 0
        if step is None or step.dims or kind not in _LIMITS:
            return None
        scale, zero = (np.float32(numpy_helper.to_array(self._constants[name])) for name in node.input[1:])
        return Integers(scale, zero, *_LIMITS[kind])

    def _scales(self, product: NodeProto) -> Floats:
        """Return what the sums of a product are multiplied by: one value, or one for each channel."""
        one, other = (numpy_helper.to_array(self._constants[self._makers[each].input[1]]) for each in product.input[:2])
        return np.asarray(one * other, np.float32)

    def _is_unscaled(self, product: NodeProto) -> bool:
        """Return whether the sums of a product are rounded as they are, as OpenVINO can divide a range by scales."""
        scales = self._scales(product)
        return len(product.input) == 2 and bool((scales > 0).all()) and product.op_type == "Conv"

    def _round(self, node: NodeProto, integers: Integers) -> None:
        """Write what rounds a tensor; for one that another is added to at once, what keeps it within its range."""
        tensor, product = node.input[0], self._products.get(node.name)
        unit = self._units.get(tensor, ONE)
        if not self._is_of_a_product(node):
            affine = integers.scale_shift_of_floats(unit)
            moved = self._write("Mul", tensor, self._constant(affine.scales))
            self._end(node, integers, self._write("Add", moved, self._constant(affine.shift + integers.least)))
            return
        unscaled = product if product is not None and self._is_unscaled(product) else None
        affine = integers.scale_shift(unit if unscaled is None else self._scales(unscaled))
        if node.name in self._kept:
            self._keep_in_range(self._kept[node.name], integers, affine, unscaled)
            return
        affine = ScaleShift(affine.scales, affine.shift + integers.least)
        if not affine.shift and not affine.scales.ndim:  # OpenVINO hands over the reciprocal, which is inverted
            affine = ScaleShift(ONE / (ONE / affine.scales), affine.shift)
        self._end(node, integers, self._moved(tensor, affine, unscaled))

    def _keep_in_range(self, sum_: _Sum, integers: Integers, affine: ScaleShift, unscaled: NodeProto | None) -> None:
        """Write what a convolution adds to another tensor, given what makes its integers."""
        steps = integers.scale_shift_of_addend(sum_.integers)
        size = steps.scales * integers.count
        moved = self._moved(sum_.rounding.input[0], affine.then(steps).without_little(size), unscaled)
        ends = (self._constant(each) for each in (steps.shift, size + steps.shift))
        self._write("Clip", moved, *ends, output=sum_.kept)

    def _is_of_a_product(self, rounding: NodeProto) -> bool:
        """Return whether a kernel of a product rounds, or one that does nothing else, as after a product of tensors."""
        maker = self._makers.get(rounding.input[0])
        summed = maker is not None and maker.name in self._additions
        return summed or rounding.name in self._products or rounding.name in self._alone

    def _moved(self, tensor: str, affine: ScaleShift, unscaled: NodeProto | None) -> str:
        """Write a multiplication and an addition, of which only the result is rounded to float32.

        The sums of products of ``unscaled`` are multiplied where they are made if channels differ: this is rounded.
        """
        if unscaled is not None:
            self.multipliers[unscaled.name] = affine.scales if affine.scales.ndim else ONE
            if affine.scales.ndim:
                return self._write("Add", tensor, self._constant(affine.shift))
        if not affine.shift:
            return self._write("Mul", tensor, self._constant(affine.scales))
        wide = self._write("Cast", tensor, to=TensorProto.DOUBLE)
        scaled = self._write("Mul", wide, self._constant(affine.scales, np.float64))
        return self._write("Cast", self._write("Add", scaled, self._constant(affine.shift, np.float64)), to=_FLOAT)

    def _end(self, node: NodeProto, integers: Integers, moved: str) -> None:
        ends = (self._constant(each) for each in (integers.least, integers.most))
        inside = self._write("Clip", self._write("Round", moved), *ends)
        self._write("Cast", inside, output=node.output[0], to=self._constants[node.input[2]].data_type)

    def _add(self, sum_: _Sum) -> None:
        """Write an addition in steps of the other tensor: what rounds it reads these, everything else their values."""
        other = sum_.other if sum_.integers is None else self._write("Cast", sum_.other, to=_FLOAT)
        (output,) = sum_.addition.output
        if self._is_rounded(output):
            self._units[output] = sum_.unit
            self._write("Add", sum_.kept, other, output=output)
        else:
            self._write("Mul", self._write("Add", sum_.kept, other), self._constant(sum_.unit), output=output)

    def _is_rounded(self, tensor: str) -> bool:
        """Return whether only a node reads a tensor that rounds it."""
        return [node.op_type for node in self._graph.node if tensor in node.input] == ["QuantizeLinear"]

    def _integers_and_offset(self, addition: NodeProto) -> tuple[str, Floats] | None:
        """Return the name of values of integers, and the constant that is added before the sum is rounded."""
        if self._is_rounded(addition.output[0]):
            for values, other in (addition.input, reversed(addition.input)):
                offset = self._constant_values(other)
                if offset is not None and self._meaning(values) is not None:
                    return values, offset
        return None

    def _constant_values(self, tensor: str) -> Floats | None:
        """Return a constant that the file holds in float, or in integers for the whole tensor."""
        held, integers = self._constants.get(self._source(tensor)), self._meaning(tensor)
        if held is None or (integers is None and held.name != tensor):
            return None
        values = np.asarray(numpy_helper.to_array(held), np.float32)
        return values if integers is None else (values - integers.zero) * integers.step

    def _add_offset(self, addition: NodeProto, values: str, offset: Floats) -> None:
        """Write the addition of a constant to integers, in their steps."""
        integers = self._meaning(values)
        assert integers is not None  # as _integers_and_offset says
        counted = self._write("Cast", self._source(values), to=_FLOAT)
        moved = self._write("Sub", counted, self._constant(integers.zero))
        self._write("Add", moved, self._constant(offset / integers.step), output=addition.output[0])
        self._units[addition.output[0]] = np.asarray(integers.step)

    def _write(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = f"openvino.{len(self._new)}"
        self._new.append(helper.make_node(kind, list(inputs), [output or name], name=name, **attributes))
        return output or name

    def _constant(self, value: Floats | np.float32, kind: type = np.float32) -> str:
        name = f"openvino.constant.{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))
        return name
