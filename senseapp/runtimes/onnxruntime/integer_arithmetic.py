"""The arithmetic of onnxruntime's integer kernels, step by step, in float.

Integers are held in float32, where sums of products of 8 bits are exact up to 2²⁴, so nothing saturates and no order
of addition counts. What follows a sum is done as the kernels do it: one multiplication by a float32 scale, rounding
half to even, then the zero point; additions and products of tensors as their kernels for AVX2 do.

Source: onnxruntime, ``core/mlas/lib`` (``quantize.cpp``, ``qlmul.cpp``, ``intrinsics/avx2/qladd_avx2.cpp``),
``contrib_ops/cpu/quantization/qlinear_softmax.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.runtimes.onnxruntime.partly_int8 import PRODUCTS_WITH_FLOAT_OUTPUT

_PRODUCTS = ("Conv", *PRODUCTS_WITH_FLOAT_OUTPUT)
Multipliers = Mapping[str, NDArray[np.float32]]
"""What the sums of products are multiplied by, by the name of their node: one value, or one for each channel."""
UNDONE_BY = ("ConvMulFusion", "ConvAddFusion", "MatMulScaleFusion", "MatmulTransposeFusion")
"""Optimisations of onnxruntime that would put scales back into integers."""


def computed_on_integers(content: bytes, *, multipliers: Multipliers | None = None) -> bytes:
    """Return a QDQ file as a network in float that computes what onnxruntime's integer kernels are to compute.

    That are convolutions, matrix products, additions and products of tensors, and softmax, in int8. Everything else is
    computed in float from what integers stand for; onnxruntime does so too, but for functions that it keeps in tables.
    With ``multipliers``, convolutions are computed so as well where nothing rounds their outputs, and biases are added
    in float after the sum of products has been multiplied: by the multiplier of its node, or by both scales where it
    has none.
    """
    model = onnx.load_from_string(content)
    _IntegerGraph(model.graph, multipliers).rewrite()
    return bytes(model.SerializeToString())


@dataclass
class _IntegerGraph:
    graph: onnx.GraphProto
    multipliers: Multipliers | None
    new_nodes: list[NodeProto] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.constants = {each.name: each for each in self.graph.initializer}
        self.dequantizing = {node.output[0]: node for node in self.graph.node if node.op_type == "DequantizeLinear"}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        products = dict.fromkeys(_PRODUCTS, self._product)
        self.writers = {**products, "Add": self._elementwise, "Mul": self._elementwise, "Softmax": self._softmax}
        self.outputs = {each.name for each in self.graph.output}

    def rewrite(self) -> None:
        nodes: list[NodeProto] = []
        gone: set[str] = set()
        for node in list(self.graph.node):
            self.new_nodes = []
            write = self.writers.get(node.op_type)
            if write is not None and (rounding := self._fused(node)) is not None:
                last = rounding[0] if rounding else None
                write(node, last)
                gone |= {last.name} if last is not None else set()
                nodes += self.new_nodes
            else:
                nodes.append(node)
        del self.graph.node[:]
        self.graph.node.extend(node for node in nodes if node.name not in gone)
        while unread := self._unread():
            for node in unread:
                self.graph.node.remove(node)

    def _unread(self) -> list[NodeProto]:
        read = {name for node in self.graph.node for name in node.input} | self.outputs
        return [each for each in self.graph.node if each.op_type == "DequantizeLinear" and each.output[0] not in read]

    def _fused(self, node: NodeProto) -> list[NodeProto] | None:
        """Return the node that rounds the output, in a list; an empty one if none does; None if it is not in int8."""
        if not all(name in self.dequantizing for name in node.input):
            return None
        readers = self.readers.get(node.output[0], [])
        rounds = [each for each in readers if each.op_type == "QuantizeLinear"]
        if len(readers) == len(rounds) == 1 and node.output[0] not in self.outputs:
            return rounds
        alone = PRODUCTS_WITH_FLOAT_OUTPUT if self.multipliers is None else _PRODUCTS
        return [] if node.op_type in alone else None

    def _value(self, node: NodeProto, place: int) -> NDArray[Any]:
        """Return scale (1) or zero point (2) of a node that rounds or undoes it."""
        if place >= len(node.input):
            return np.zeros((), np.float32)
        return np.array(numpy_helper.to_array(self.constants[node.input[place]]))

    def _constant(self, value: NDArray[Any] | float, kind: type = np.float32) -> str:
        name = f"integers.{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))
        return name

    def _add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        self.count += 1
        name = f"integers.node.{self.count}"
        self.new_nodes.append(helper.make_node(kind, list(inputs), [output or name], name=name, **attributes))
        return output or name

    def _integers(self, name: str) -> str:
        """Return the tensor of integers less their zero point that ``name`` stands for."""
        node = self.dequantizing[name]
        source, zero = node.input[0], self._value(node, 2).astype(np.float32)
        if source in self.constants:
            values = numpy_helper.to_array(self.constants[source]).astype(np.float32)
            return self._constant(values - (zero if zero.ndim == 0 else zero.reshape(_along(node, values.ndim))))
        return self._add("Sub", self._add("Cast", source, to=TensorProto.FLOAT), self._constant(zero))

    def _product(self, node: NodeProto, rounding: NodeProto | None) -> None:
        activation, weight = (self.dequantizing[name] for name in node.input[:2])
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        factors, bias = (node.input, ()) if self.multipliers is None else (node.input[:2], node.input[2:])
        total = self._add(node.op_type, *map(self._integers, factors), **attributes)
        own = (self.multipliers or {}).get(node.name)
        scale = self._value(activation, 1) * self._value(weight, 1) if own is None else own
        if node.op_type == "Conv" and scale.ndim:
            rank = len(self.constants[weight.input[0]].dims)
            scale = scale.reshape(-1, *[1] * (rank - 2))
        if rounding is None:
            scaled = self._add("Mul", total, self._constant(scale), output="" if bias else node.output[0])
            if bias:
                self._add("Add", scaled, self._offsets(bias[0], scale.ndim), output=node.output[0])
            return
        zero = float(self._value(rounding, 2))
        scaled = self._add("Mul", total, self._constant(scale / self._value(rounding, 1)))
        inside = self._add("Clip", scaled, self._constant(-zero), self._constant(255 - zero))
        whole = self._add("Add", self._add("Round", inside), self._constant(zero))
        self._add("Cast", whole, output=rounding.output[0], to=TensorProto.UINT8)

    def _offsets(self, bias: str, rank: int) -> str:
        """Return a bias in float, as it meets an output whose scales have so many dimensions."""
        node = self.dequantizing[bias]
        values = numpy_helper.to_array(self.constants[node.input[0]]).astype(np.float32) * self._value(node, 1)
        return self._constant(values.reshape(-1, *[1] * max(0, rank - 1)))

    def _elementwise(self, node: NodeProto, rounding: NodeProto | None) -> None:
        assert rounding is not None  # or it were not fused
        first, second = (self.dequantizing[name] for name in node.input)
        scales = [self._value(each, 1) for each in (first, second)]
        last, zero = self._value(rounding, 1), self._value(rounding, 2).astype(np.float32)
        if node.op_type == "Mul":
            product = self._add("Mul", *(self._integers(name) for name in node.input))
            total = self._add(
                "Add", self._add("Mul", product, self._constant(scales[0] * scales[1] / last)), self._constant(zero)
            )
        else:
            ratios = [scale / last for scale in scales]
            zeros = [self._value(each, 2).astype(np.float32) for each in (first, second)]
            fused = np.float32(np.float64(ratios[0]) * zeros[0] + np.float32(ratios[1] * zeros[1]))  # by the compiler
            total = self._constant(np.float64(zero - fused), np.float64)
            for each, ratio in zip((second, first), reversed(ratios), strict=True):  # two fused multiply-adds
                wide = self._add("Cast", each.input[0], to=TensorProto.DOUBLE)
                total = self._add("Add", self._add("Mul", wide, self._constant(ratio, np.float64)), total)
                total = self._add("Cast", total, to=TensorProto.FLOAT)
                if each is second:
                    total = self._add("Cast", total, to=TensorProto.DOUBLE)
        inside = self._add("Clip", self._add("Round", total), self._constant(0), self._constant(255))
        self._add("Cast", inside, output=rounding.output[0], to=TensorProto.UINT8)

    def _softmax(self, node: NodeProto, rounding: NodeProto | None) -> None:
        """Shares are multiplied by the whole number below 1 / scale, where others divide by the scale."""
        assert rounding is not None
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        shares = self._add("Softmax", node.input[0], **attributes)
        steps = self._add("Mul", shares, self._constant(np.floor(np.float32(1) / self._value(rounding, 1))))
        whole = self._add("Add", self._add("Round", steps), self._constant(float(self._value(rounding, 2))))
        inside = self._add("Clip", whole, self._constant(0), self._constant(255))
        self._add("Cast", inside, output=rounding.output[0], to=TensorProto.UINT8)


def _along(node: NodeProto, rank: int) -> tuple[int, ...]:
    """Return the shape in which a value for each channel meets a tensor of ``rank`` dimensions."""
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    return tuple(-1 if place == axis else 1 for place in range(rank))
