"""An ONNX file that is being written, with constants that are stored as integers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.networks.onnx.graph import OnnxGraph

ROUNDING = ("QuantizeLinear", "DequantizeLinear")
"""What turns values into integers and back."""
AFTER, CODES = "_DequantizeLinear_Output", "_QuantizeLinear_Output"
"""Behind the name of a tensor, those of its rounded values and of their integers."""
UNPACKED = ".unpacked"
"""Behind the name of a weight in 8 bits, where a node in float reads it."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Codes:
    """A constant as integers, with its scales along ``axis``, or one for all."""

    integers: Array
    scale: Array
    zero_point: Array
    axis: int | None = None

    @property
    def spread(self) -> Array:
        """The scales in a shape that broadcasts."""
        if self.axis is None:
            return self.scale
        return self.scale.reshape([-1 if axis == self.axis else 1 for axis in range(self.integers.ndim)])


class FileWriter:
    """Nodes and constants of a file of ``network`` that is being written."""

    def __init__(self, network: OnnxGraph) -> None:
        self._graph = OnnxGraph(network.model)
        self._graph.initializers = dict(network.initializers)
        self._first: dict[str, list[NodeProto]] = {}
        self.nodes: list[NodeProto] = []

    def stored(self, name: str, values: Array) -> str:
        """Store a constant, and return its name."""
        self._graph.initializers[name] = numpy_helper.from_array(values, name)
        return name

    def grid(self, name: str, zero_point: Array, scale: Array) -> list[str]:
        """Store scale and zero point of a tensor, and return their names."""
        return [self.stored(f"{name}_scale", scale), self.stored(f"{name}_zero_point", zero_point)]

    def dequantized(self, name: str, codes: Codes) -> str:
        """Return the name of a constant in float, made of integers where it is read."""
        result = name + AFTER
        if result not in self._first:
            given = [self.stored(f"{name}_quantized", codes.integers), *self.grid(name, codes.zero_point, codes.scale)]
            axis: dict[str, Any] = {} if codes.axis is None else {"axis": codes.axis}
            self._first[result] = [helper.make_node(ROUNDING[1], given, [result], f"{name}_{ROUNDING[1]}", **axis)]
        return result

    def unpacked(self, name: str, codes: Codes) -> str:
        """Return the name of a weight in float that runtimes make of integers when they open the file."""
        integers, result = self.stored(f"{name}_quantized", codes.integers), f"{name}{UNPACKED}"
        cast = helper.make_node("Cast", [integers], [f"{result}.cast"], f"{result}.cast", to=TensorProto.FLOAT)
        scale = self.stored(f"{result}.scale", codes.spread)
        self._first[result] = [cast, helper.make_node("Mul", [cast.output[0], scale], [result], result)]
        return result

    def content(self) -> bytes:
        """Return the bytes of the file, without rounding and constants that nothing reads."""
        self._graph.nodes = [*itertools.chain(*self._first.values()), *self.nodes]
        self._graph.prune()
        return self._graph.content()
