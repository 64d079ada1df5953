"""Differences between OpenVINO's int8 kernels and onnxruntime's, written into a QDQ file.

What OpenVINO computes at once is read from the graph that it executes. Its convolutions are exact sums of products,
as onnxruntime's are, but

- what a convolution rounds before something else that is computed with it, an addition for example, is kept within the
  range of the integers, and not rounded;
- what float kernels round is multiplied by the reciprocal of the step and shifted, where onnxruntime divides: values
  halfway between two integers, such as pixels in a range from −1 to 1, are rounded to the other side.

Source: measured with ``tests/unit/test_openvino_arithmetic.py``; OpenVINO, ``src/plugins/intel_cpu/src/nodes/
fake_quantize.cpp`` (``appendAttrPostOps``), ``src/common/snippets/src/pass/fq_decomposition.cpp``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from senseapp.compat.openvino_internals import executed_nodes
from senseapp.runtimes.onnxruntime.integer_arithmetic import computed_on_integers
from senseapp.runtimes.openvino.runtime import compiled, read

_FUSING = {"Convolution", "FullyConnected", "Deconvolution"}
_LARGEST = {
    kind: (int(limits.min), int(limits.max))
    for kind, limits in ((TensorProto.UINT8, np.iinfo(np.uint8)), (TensorProto.INT8, np.iinfo(np.int8)))
}


def computed_as_in_openvino(content: bytes) -> bytes:
    """Return a QDQ file as a network in float that computes what OpenVINO's kernels do, saturation left aside.

    Raises:
        InvalidSpec: OpenVINO cannot open it.
    """
    model = onnx.load_from_string(content)
    _ArithmeticGraph(model.graph, _left_out(model, content)).rewrite()
    return computed_on_integers(model.SerializeToString(), float_outputs=True)


def _left_out(model: onnx.ModelProto, content: bytes) -> frozenset[str]:
    """Return the names of the roundings that OpenVINO does not execute as such."""
    network = read(content)
    shapes = [[size.get_length() if size.is_static else 1 for size in each.partial_shape] for each in network.inputs]
    additions = {node.name for node in model.graph.node if node.op_type == "Add"}
    executed = executed_nodes(compiled(network, *shapes, threads=1))
    return frozenset(
        one for node in executed if node.kind in _FUSING for one, other in pairwise(node.parts) if other in additions
    )


class _ArithmeticGraph:
    def __init__(self, graph: onnx.GraphProto, left_out: frozenset[str]) -> None:
        self._graph, self._left_out = graph, left_out
        self._constants = {each.name: each for each in graph.initializer}

    def rewrite(self) -> None:
        """Rewrite every rounding of a tensor in turn."""
        nodes: list[NodeProto] = []
        clipped: dict[str, str] = {}
        for node in self._graph.node:
            if node.op_type == "DequantizeLinear" and node.input[0] in clipped:
                nodes.append(helper.make_node("Identity", [clipped[node.input[0]]], [node.output[0]], name=node.name))
            elif node.op_type != "QuantizeLinear" or not self._is_of_a_tensor(node):
                nodes.append(node)
            elif node.name in self._left_out:
                clipped[node.output[0]] = f"{node.output[0]}.clipped"
                nodes.append(self._clip(node, clipped[node.output[0]]))
            else:
                nodes += self._rounding(node)
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _is_of_a_tensor(self, node: NodeProto) -> bool:
        scale = self._constants.get(node.input[1])
        kind = self._constants[node.input[2]].data_type if len(node.input) > 2 else 0
        return scale is not None and not scale.dims and kind in _LARGEST

    def _values(self, node: NodeProto) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return the scale of a rounding, and the least and largest value of its integers."""
        scale, zero = (numpy_helper.to_array(self._constants[name]).astype(np.float32) for name in node.input[1:])
        low, high = (np.float32(each) for each in _LARGEST[self._constants[node.input[2]].data_type])
        return scale, (low - zero) * scale, (high - zero) * scale

    def _clip(self, node: NodeProto, output: str) -> NodeProto:
        _, low, high = self._values(node)
        return helper.make_node("Clip", [node.input[0], self._constant(node, "low", low),
                                         self._constant(node, "high", high)], [output], name=node.name)  # fmt: skip

    def _rounding(self, node: NodeProto) -> list[NodeProto]:
        """Return x · (255 / (high − low)) − low · (255 / (high − low)), rounded: each step in float32."""
        _, low, high = self._values(node)
        kind = self._constants[node.input[2]].data_type
        least, most = _LARGEST[kind]
        rate = np.float32(most - least) / (high - low)
        steps = (
            ("Mul", self._constant(node, "rate", rate)),
            ("Add", self._constant(node, "shift", -low * rate + np.float32(least))),
            ("Round",),
            ("Clip", self._constant(node, "least", np.float32(least)), self._constant(node, "most", np.float32(most))),
        )
        made, tensor = [], node.input[0]
        for operator, *constants in steps:
            output = f"{node.output[0]}.{operator}"
            made.append(helper.make_node(operator, [tensor, *constants], [output], name=f"{node.name}.{operator}"))
            tensor = output
        return [*made, helper.make_node("Cast", [tensor], [node.output[0]], name=node.name, to=kind)]

    def _constant(self, node: NodeProto, what: str, value: NDArray[np.float32] | np.float32) -> str:
        name = f"{node.output[0]}.{what}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name
