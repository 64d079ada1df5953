"""Differences between OpenVINO's int8 kernels and onnxruntime's, written into a QDQ file.

What OpenVINO computes at once is read from the graph that it executes. Its sums of products are exact, as onnxruntime's
are, but

- what is rounded is multiplied and shifted, where onnxruntime divides by the step: x · 255 / (high − low) − low · 255 /
  (high − low), where values from low to high become the integers. In float32 the shift is not always a whole number,
  and values halfway between two integers, such as pixels in a range from −1 to 1, may go the other way;
- a sum of products without a bias is rounded as it is, unscaled: low and high are divided by the scale of each channel,
  and the shift is the first channel's;
- what a convolution rounds before another tensor is added to it is kept within the range of the integers, and not
  rounded. It is added in steps of that tensor.

Source: measured with ``tests/reference/test_openvino_arithmetic.py``; OpenVINO, ``common/transformations/src/
transformations/common_optimizations/mul_fake_quantize_fusion.cpp``, ``common/low_precision_transformations/src/
add.cpp``, ``plugins/intel_cpu/src/dnnl_postops_composer.cpp`` (``updateOptimizedFormula``, ``appendLinear``),
``common/snippets/src/pass/fq_decomposition.cpp`` (``getScalesAndShifts``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.compat.openvino_internals import executed_nodes
from senseapp.runtimes.onnxruntime.integer_arithmetic import computed_on_integers
from senseapp.runtimes.openvino.runtime import compiled, read

_Floats = NDArray[np.float32]
_FLOAT = TensorProto.FLOAT
_FUSING = {"Convolution", "FullyConnected", "Deconvolution"}
_LIMITS = {
    kind: (np.float32(limits.min), np.float32(limits.max))
    for kind, limits in ((TensorProto.UINT8, np.iinfo(np.uint8)), (TensorProto.INT8, np.iinfo(np.int8)))
}
_ONE = np.asarray(1, np.float32)
_LITTLE = np.float32(1e-5)  # of a range; a shift by less is left out


def computed_as_in_openvino(content: bytes) -> bytes:
    """Return a QDQ file as a network in float that computes what OpenVINO's kernels do, saturation left aside.

    Raises:
        InvalidSpec: OpenVINO cannot open it.
    """
    model = onnx.load_from_string(content)
    graph = _ArithmeticGraph(model.graph, _computed_at_once(content))
    graph.rewrite()
    return computed_on_integers(model.SerializeToString(), multipliers=graph.multipliers)


def _computed_at_once(content: bytes) -> list[tuple[str, ...]]:
    """Return the names of the nodes that OpenVINO computes together with each product with weights, that first."""
    network = read(content)
    shapes = [[size.get_length() if size.is_static else 1 for size in each.partial_shape] for each in network.inputs]
    executed = executed_nodes(compiled(network, *shapes, threads=1))
    return [each.parts for each in executed if each.kind in _FUSING]


@dataclass(frozen=True, slots=True)
class _Line:
    """What a tensor is multiplied by, one value or one for each channel, and what is added then."""

    rates: _Floats
    shift: _Floats

    def then(self, other: _Line) -> _Line:
        """Return both lines as one; ``other`` is the same for all channels."""
        return _Line(self.rates * other.rates, self.shift * other.rates + other.shift)


@dataclass(frozen=True, slots=True)
class _Integers:
    """What integers from ``least`` to ``most`` stand for: values that are ``step`` apart, 0 at ``zero``."""

    step: np.float32
    zero: np.float32
    least: np.float32
    most: np.float32

    @property
    def count(self) -> np.float32:
        """Of steps."""
        return self.most - self.least

    def line(self, unit: _Floats) -> _Line:
        """Return how values in steps of ``unit`` become integers together with a product; channels differ in steps."""
        low, high = ((end - self.zero) * self.step / unit for end in (self.least, self.most))
        shifts = -low * self.count / (high - low)  # equal but for what float32 rounds: the first one counts
        return _Line(self.count / (high - low), np.reshape(shifts, -1)[0] + self.least)

    def line_of_floats(self) -> _Line:
        """Return how values become integers in a kernel that is made for what is computed in float."""
        low, high = ((end - self.zero) * self.step for end in (self.least, self.most))
        rate = self.count / (high - low)
        return _Line(np.asarray(rate), np.asarray(-low * rate + self.least))


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
    integers: _Integers | None

    @property
    def kept(self) -> str:
        """Name of what the convolution adds."""
        return f"{self.rounding.output[0]}.kept"

    @property
    def unit(self) -> _Floats:
        """What both tensors are added in steps of."""
        return _ONE if self.integers is None else np.asarray(self.integers.step)

    def line(self, integers: _Integers) -> _Line:
        """Return how integers of the convolution become steps of the other tensor, less those that stand for its 0."""
        zero = integers.zero
        if self.integers is not None:
            zero = zero + self.integers.zero * self.integers.step / integers.step
        low, high = ((end - zero) * (integers.step / self.unit) for end in (integers.least, integers.most))
        return _Line((high - low) / integers.count, low)


class _ArithmeticGraph:
    """A graph in the making.

    Attributes:
        multipliers: what the sums of products are multiplied by, by the name of their node.
    """

    def __init__(self, graph: onnx.GraphProto, at_once: list[tuple[str, ...]]) -> None:
        self._graph = graph
        self._constants = {each.name: each for each in graph.initializer}
        self._nodes = {node.name: node for node in graph.node}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._products = dict(self._rounded_products(at_once))
        sums = list(self._sums_at_once(at_once))
        self._kept = {each.rounding.name: each for each in sums}
        self._additions = {each.addition.name: each for each in sums}
        self._units: dict[str, _Floats] = {}
        self._new: list[NodeProto] = []
        self.multipliers: dict[str, _Floats] = {}

    def rewrite(self) -> None:
        """Rewrite every rounding of a tensor in turn, and what is added to one at once."""
        unread = {each.rounding.output[0] for each in self._kept.values()}
        for node in self._graph.node:
            integers = self._integers(node) if node.op_type == "QuantizeLinear" else None
            if node.name in self._additions:
                self._add(self._additions[node.name])
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
        makers = [self._makers.get(each) for each in product.input]
        return all(each is not None and each.op_type == "DequantizeLinear" for each in makers)

    def _sums_at_once(self, at_once: list[tuple[str, ...]]) -> Iterator[_Sum]:
        for one, other in (pair for parts in at_once for pair in pairwise(parts)):
            addition = self._nodes.get(other)
            if one in self._products and addition is not None and addition.op_type == "Add":
                yield self._sum(self._nodes[one], addition)

    def _sum(self, rounding: NodeProto, addition: NodeProto) -> _Sum:
        (other,) = (each for each in addition.input if self._makers[each].input[0] != rounding.output[0])
        maker = self._makers[other]
        integers = self._integers(maker) if maker.op_type == "DequantizeLinear" else None
        return _Sum(rounding, addition, other if integers is None else maker.input[0], integers)

    def _integers(self, node: NodeProto) -> _Integers | None:
        """Return what the integers of a node that rounds a tensor, or undoes it, stand for; None if of channels."""
        step = self._constants.get(node.input[1])
        kind = self._constants[node.input[2]].data_type if len(node.input) > 2 else 0
        if step is None or step.dims or kind not in _LIMITS:
            return None
        values = (numpy_helper.to_array(self._constants[name]).astype(np.float32)[()] for name in node.input[1:])
        return _Integers(*values, *_LIMITS[kind])

    def _scales(self, product: NodeProto) -> _Floats:
        """Return what the sums of a product are multiplied by: one value, or one for each channel."""
        one, other = (numpy_helper.to_array(self._constants[self._makers[each].input[1]]) for each in product.input[:2])
        return np.asarray(one * other, np.float32)

    def _is_unscaled(self, product: NodeProto) -> bool:
        """Return whether the sums of a product are rounded as they are, as OpenVINO can divide a range by scales."""
        scales = self._scales(product)
        return len(product.input) == 2 and bool((scales > 0).all()) and (product.op_type == "Conv" or not scales.ndim)

    def _round(self, node: NodeProto, integers: _Integers) -> None:
        """Write what rounds a tensor; for one that another is added to at once, what keeps it within its range."""
        tensor, product = node.input[0], self._products.get(node.name)
        if product is None and tensor not in self._units:
            line = integers.line_of_floats()
            moved = self._write("Mul", tensor, self._constant(line.rates))
            self._end(node, integers, self._write("Add", moved, self._constant(line.shift)))
            return
        unscaled = product if product is not None and self._is_unscaled(product) else None
        line = integers.line(self._units.get(tensor, _ONE) if unscaled is None else self._scales(unscaled))
        kept = self._kept.get(node.name)
        if kept is None:
            rates = _ONE / (_ONE / line.rates) if not line.shift and not line.rates.ndim else line.rates
            self._end(node, integers, self._moved(tensor, _Line(rates, line.shift), unscaled))
            return
        steps = kept.line(integers)
        size = steps.rates * integers.count
        line = line.then(steps)
        line = line if abs(line.shift) >= _LITTLE * size else _Line(line.rates, np.zeros_like(line.shift))
        ends = (self._constant(steps.shift), self._constant(size + steps.shift))
        self._write("Clip", self._moved(tensor, line, unscaled), *ends, output=kept.kept)

    def _moved(self, tensor: str, line: _Line, unscaled: NodeProto | None) -> str:
        """Write a multiplication and an addition, of which only the result is rounded to float32.

        The sums of products of ``unscaled`` are multiplied where they are made if channels differ: this is rounded.
        """
        if unscaled is not None:
            self.multipliers[unscaled.name] = line.rates if line.rates.ndim else _ONE
            if line.rates.ndim:
                return self._write("Add", tensor, self._constant(line.shift))
        if not line.shift:
            return self._write("Mul", tensor, self._constant(line.rates))
        wide = self._write("Cast", tensor, to=TensorProto.DOUBLE)
        scaled = self._write("Mul", wide, self._constant(line.rates, np.float64))
        return self._write("Cast", self._write("Add", scaled, self._constant(line.shift, np.float64)), to=_FLOAT)

    def _end(self, node: NodeProto, integers: _Integers, moved: str) -> None:
        ends = (self._constant(each) for each in (integers.least, integers.most))
        inside = self._write("Clip", self._write("Round", moved), *ends)
        self._write("Cast", inside, output=node.output[0], to=self._constants[node.input[2]].data_type)

    def _add(self, sum_: _Sum) -> None:
        """Write an addition in steps of the other tensor: what rounds it reads these, everything else their values."""
        other = sum_.other if sum_.integers is None else self._write("Cast", sum_.other, to=_FLOAT)
        (output,) = sum_.addition.output
        readers = [node for node in self._graph.node if output in node.input]
        if len(readers) == 1 and readers[0].op_type == "QuantizeLinear":
            self._units[output] = sum_.unit
            self._write("Add", sum_.kept, other, output=output)
        else:
            self._write("Mul", self._write("Add", sum_.kept, other), self._constant(sum_.unit), output=output)

    def _write(self, kind: str, *inputs: str, output: str = "", **attributes: int) -> str:
        name = f"openvino.{len(self._new)}"
        self._new.append(helper.make_node(kind, list(inputs), [output or name], name=name, **attributes))
        return output or name

    def _constant(self, value: _Floats | np.float32, kind: type = np.float32) -> str:
        name = f"openvino.constant.{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))
        return name
