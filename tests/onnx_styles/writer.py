"""Writes ONNX graphs node by node, with the habits of the converter that is imitated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


class Writer:
    """Collects nodes and tensors; each method returns the name of the value it adds.

    Args:
        opset: version of the default domain.
        names: what node names begin with; None for nodes without names.
        in_nodes: whether weights are ``Constant`` nodes instead of initializers.
        ir: version of the file format.
    """

    def __init__(
        self, *, opset: int = 13, names: str | None = "node", in_nodes: bool = False, ir: int = 8, seed: int = 0
    ) -> None:
        self.opset, self.ir = opset, ir
        self.names, self.in_nodes = names, in_nodes
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(seed)
        self._count = 0

    def fresh(self, stem: str) -> str:
        """Return a value name that is not taken."""
        self._count += 1
        return f"{stem}_{self._count}"

    def input(self, shape: Shape, kind: int = TensorProto.FLOAT, name: str = "x") -> str:
        """Add an input of the graph; a length of −1 is stored as the number −1."""
        info = helper.make_tensor_value_info(name, kind, [1 if each == -1 else each for each in shape])
        for dim, length in zip(info.type.tensor_type.shape.dim, shape, strict=True):
            if length == -1:
                dim.dim_value = -1
        self.inputs.append(info)
        return name

    def const(self, value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> str:
        """Add a tensor of the file."""
        name = name or self.fresh("const")
        tensor = numpy_helper.from_array(np.asarray(value, dtype), name)
        if self.in_nodes:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def ints(self, *numbers: int) -> str:
        """Add whole numbers, as shapes and axes are given."""
        return self.const(numbers, np.int64)

    def weight(self, *shape: int, name: str | None = None, scale: float | None = None) -> str:
        """Add random float32 numbers that keep the size of what they multiply."""
        return self.const(self.numbers(*shape, scale=scale), np.float32, name)

    def numbers(self, *shape: int, scale: float | None = None) -> np.ndarray:
        """Return the numbers of :meth:`weight`."""
        scale = scale or max(1, int(np.prod(shape[1:]))) ** -0.5
        return self.random.standard_normal(shape).astype(np.float32) * np.float32(scale)

    def op(self, kind: str, *inputs: str, into: str | None = None, **attributes: Any) -> str:
        """Add a node of one output."""
        return self.ops(kind, *inputs, into=[into or self.fresh(kind.lower())], **attributes)[0]

    def ops(self, kind: str, *inputs: str, into: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node whose outputs are called ``into``."""
        name = None if self.names is None else f"{self.names}{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), list(into), name=name, **attributes))
        return list(into)

    def conv(self, x: str, ins: int, outs: int, kernel: int = 3, *, bias: bool = True, **attributes: Any) -> str:
        """Add a convolution with pads that keep the size at stride 1."""
        groups = attributes.get("group", 1)
        attributes.setdefault("pads", [kernel // 2] * 4)
        tensors = [self.weight(outs, ins // groups, kernel, kernel)] + ([self.weight(outs, scale=0.1)] if bias else [])
        return self.op("Conv", x, *tensors, kernel_shape=[kernel] * 2, **attributes)

    def norm(self, x: str, channels: int) -> str:
        """Add a batch normalisation with statistics that are not 0 and 1."""
        scale = self.const(1 + self.numbers(channels, scale=0.1))
        mean, variance = self.weight(channels, scale=0.1), self.const(1 + self.numbers(channels, scale=0.1) ** 2)
        return self.op("BatchNormalization", x, scale, self.weight(channels, scale=0.1), mean, variance, epsilon=1e-3)

    def dense(self, x: str, ins: int, outs: int) -> str:
        """Add a product with a constant and a sum with another one."""
        return self.op("Add", self.op("MatMul", x, self.weight(ins, outs, scale=ins**-0.5)), self.weight(outs))

    def graph(self, *outputs: str) -> GraphProto:
        """Return what was collected; outputs have no declared shape. Format 3 lists its weights as inputs too."""
        infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        weights = [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in self.initializers]
        inputs = [*self.inputs, *(weights if self.ir < 4 else [])]
        return helper.make_graph(self.nodes, "graph", inputs, infos, self.initializers)

    def model(self, *outputs: str, **more: Any) -> onnx.ModelProto:
        """Return the model."""
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(self.graph(*outputs), opset_imports=opsets, ir_version=self.ir, **more)

    def file(self, *outputs: str) -> bytes:
        """Return the bytes of the model."""
        return bytes(self.model(*outputs).SerializeToString())
