"""The simulation of OpenVINO's int8 kernels against OpenVINO, on small files of what it computes at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from senseapp.runtimes.onnx_network import saturates
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.openvino.operations import OPERATIONS
from senseapp.runtimes.openvino.runtime import OpenVinoModel

CHANNELS, SIDE = 16, 24
TIES = {"residual": 5e-5, "attention": 5e-5}
"""What OpenVINO adds first, and how it makes a softmax, cannot be read from the graph that it executes."""


class Graph:
    """A QDQ file in the making; weights have 7 bits, so that no sum of two products saturates."""

    def __init__(self, *, scale: float = 0.03, zero: int = 120, stretched: float = 1.05) -> None:
        self.generator = np.random.default_rng(3)
        self.nodes, self.constants, self.scales = [], [], {}
        self.stretched = stretched
        self.x = self.rounded("x", scale, zero)

    def constant(self, value, kind=np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.array(value, kind), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind: str, *given: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(given), [name], name=f"node_{name}", **attributes))
        return name

    def rounded(self, tensor: str, scale: float, zero: int) -> str:
        scale *= self.generator.uniform(1, self.stretched)  # or sums of round steps would often lie halfway
        ends = self.constant(scale), self.constant(zero, np.uint8)
        made, name = f"{tensor}_QuantizeLinear_Output", f"{tensor}_QuantizeLinear"
        self.nodes.append(helper.make_node("QuantizeLinear", [tensor, *ends], [made], name=name))
        real = f"{tensor}_DequantizeLinear_Output"
        self.nodes.append(
            helper.make_node("DequantizeLinear", [made, *ends], [real], name=f"{tensor}_DequantizeLinear")
        )
        self.scales[real] = scale
        return real

    def conv(self, given: str, *, group: int = 1, bias: bool = True) -> str:
        shape = CHANNELS, CHANNELS // group, 3, 3
        scales = self.generator.uniform(0.004, 0.01, CHANNELS)
        weight = self.constant(self.generator.integers(-64, 65, shape), np.int8)
        zeros = self.constant(np.zeros(CHANNELS), np.int8)
        real = self.node("DequantizeLinear", weight, self.constant(scales), zeros, axis=0)
        if not bias:
            return self.node("Conv", given, real, pads=[1] * 4, group=group)
        whole = self.constant(self.generator.integers(-3000, 3000, CHANNELS), np.int32)
        step = self.scales[given]
        steps = self.constant(scales * step), self.constant(np.zeros(CHANNELS), np.int32)
        offsets = self.node("DequantizeLinear", whole, *steps, axis=0)
        return self.node("Conv", given, real, offsets, pads=[1] * 4, group=group)

    def file(self, made: str) -> bytes:
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", CHANNELS, SIDE, SIDE])
        output = helper.make_tensor_value_info(made, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [given], [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model).SerializeToString()


def conv(graph: Graph) -> str:
    return graph.rounded(graph.conv(graph.x), 0.05, 110)


def conv_without_a_bias(graph: Graph) -> str:
    return graph.rounded(graph.conv(graph.x, bias=False), 0.05, 110)


def depthwise(graph: Graph) -> str:
    return graph.rounded(graph.conv(graph.x, group=CHANNELS), 0.02, 110)


def clipped_range(graph: Graph) -> str:
    return graph.rounded(graph.conv(graph.x), 0.02, 0)


def residual(graph: Graph) -> str:
    body = graph.rounded(graph.conv(graph.x), 0.05, 128)
    return graph.rounded(graph.node("Add", body, graph.x), 0.04, 100)


def residual_beyond_the_range(graph: Graph) -> str:
    body = graph.rounded(graph.conv(graph.x), 0.01, 128)
    return graph.rounded(graph.node("Add", body, graph.x), 0.02, 100)


def sum_of_convs(graph: Graph, *, bias: bool = True, zeros: tuple[int, int, int] = (128, 90, 128)) -> str:
    one, other = (graph.rounded(graph.conv(graph.x, bias=bias), 0.05, zero) for zero in zeros[:2])
    return graph.rounded(graph.node("Add", one, other), 0.08, zeros[2])


def sum_of_convs_before_a_conv(graph: Graph) -> str:
    """OpenVINO keeps the sum in integers, which it makes without a zero point, as after a ReLU, in its own way."""
    return graph.rounded(graph.conv(sum_of_convs(graph, zeros=(128, 0, 0))), 0.1, 128)


def sum_of_convs_in_float(graph: Graph) -> str:
    one, other = (graph.rounded(graph.conv(graph.x), 0.05, zero) for zero in (128, 90))
    return graph.node("Add", one, other)


def matrix_and_offsets(graph: Graph) -> str:
    tokens = graph.node("Transpose", graph.x, perm=[0, 2, 3, 1])
    scales = graph.constant(graph.generator.uniform(0.004, 0.01, CHANNELS))
    zeros = graph.constant(np.zeros(CHANNELS), np.int8)
    weight = graph.constant(graph.generator.integers(-64, 65, (CHANNELS, CHANNELS)), np.int8)
    real = graph.node("DequantizeLinear", weight, scales, zeros, axis=1)
    made = graph.rounded(graph.node("MatMul", tokens, real), 0.02, 120)
    offsets = graph.constant(graph.generator.normal(0, 0.5, CHANNELS))
    return graph.rounded(graph.node("Add", made, offsets), 0.03, 100)


def between(kind: str, scale: float, zero: int, **attributes) -> Callable[[Graph], str]:
    def made(graph: Graph) -> str:
        first = graph.rounded(graph.conv(graph.x), 0.05, zero)
        second = graph.rounded(graph.node(kind, first, **attributes), scale, 0 if zero == 0 else 20)
        return graph.rounded(graph.conv(second), 0.1, 128)

    return made


def gated(graph: Graph) -> str:
    first = graph.rounded(graph.conv(graph.x), 0.05, 128)
    mean = graph.node("ReduceMean", first, graph.constant([2, 3], np.int64), keepdims=1)
    gate = graph.rounded(graph.node("HardSigmoid", graph.rounded(mean, 0.01, 128), alpha=1 / 6), 1 / 255, 0)
    return graph.rounded(graph.node("Mul", first, gate), 0.03, 128)


def product(graph: Graph) -> str:
    one, other = (graph.rounded(graph.conv(graph.x), 0.05, zero) for zero in (128, 90))
    return graph.rounded(graph.node("Mul", one, other), 0.1, 128)


def joined(graph: Graph) -> str:
    one, other = (graph.rounded(graph.conv(graph.x), scale, zero) for scale, zero in ((0.05, 128), (0.03, 90)))
    return graph.rounded(graph.node("Concat", one, other, axis=1), 0.06, 110)


def pooled(graph: Graph) -> str:
    first = graph.rounded(graph.conv(graph.x), 0.05, 100)
    mean = graph.rounded(graph.node("AveragePool", first, kernel_shape=[3, 3], pads=[1] * 4), 0.03, 100)
    return graph.rounded(graph.node("MaxPool", mean, kernel_shape=[2, 2], strides=[2, 2]), 0.03, 100)


def classifier(graph: Graph) -> str:
    first = graph.rounded(graph.conv(graph.x), 0.05, 100)
    flat = graph.node("Flatten", graph.node("ReduceMean", first, graph.constant([2, 3], np.int64), keepdims=1))
    values = graph.generator.integers(-64, 65, (10, CHANNELS))
    weight = graph.node("DequantizeLinear", graph.constant(values, np.int8), graph.constant(0.01))
    bias = graph.node("DequantizeLinear", graph.constant(np.arange(10) * 30, np.int32), graph.constant(0.0001))
    return graph.node("Gemm", graph.rounded(flat, 0.01, 128), weight, bias, transB=1)


def attention(graph: Graph) -> str:
    first = graph.rounded(graph.conv(graph.x), 0.4, 128)  # products of small integers: those of large ones saturate
    tokens = graph.node("Reshape", first, graph.constant([0, CHANNELS, -1], np.int64))
    turned = graph.node("Transpose", tokens, perm=[0, 2, 1])
    scores = graph.rounded(graph.node("MatMul", turned, tokens), 4.0, 128)
    shares = graph.rounded(graph.node("Softmax", scores, axis=-1), 1 / 64, 0)
    return graph.rounded(graph.node("MatMul", shares, turned), 0.1, 128)


PATTERNS = {
    "conv": conv,
    "conv without a bias": conv_without_a_bias,
    "depthwise": depthwise,
    "clipped range": clipped_range,
    "residual": residual,
    "residual beyond the range": residual_beyond_the_range,
    "sum of convs": sum_of_convs,
    "sum of convs without biases": partial(sum_of_convs, bias=False),
    "sum of convs before a conv": sum_of_convs_before_a_conv,
    "matrix and offsets": matrix_and_offsets,
    "hardswish": between("HardSwish", 0.04, 128),
    "hardswish without a zero point": between("HardSwish", 0.04, 0),
    "sigmoid": between("Sigmoid", 1 / 255, 128),
    "sigmoid without a zero point": between("Sigmoid", 1 / 255, 0),
    "gelu": between("Gelu", 0.04, 128),
    "relu": between("Relu", 0.05, 128),
    "gate": gated,
    "product": product,
    "concat": joined,
    "pools": pooled,
    "classifier": classifier,
    "attention": attention,
}


def compared(content: bytes, images: torch.Tensor) -> tuple[float, float]:
    """Return the shares of values that differ by a step from OpenVINO's: as simulated for it, and for onnxruntime."""
    opened = (
        OPERATIONS.open(content, threads=1),
        OPERATIONS.simulated(content),
        RuntimeModel(content, simulated=True),
    )
    real, *others = (next(iter(each.tensors(images).values())) for each in opened)
    step = torch.unique(real).diff().clamp_min(1e-6).min()
    own, plain = (((real - each).abs() > step / 2).double().mean().item() for each in others)
    return own, plain


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).normal(0, 1.2, (3, CHANNELS, SIDE, SIDE)).astype(np.float32))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_computed_as_in_openvino(name, images) -> None:
    """To the bit, where products of 8 bits have instructions; other kernels differ in what they compute at once."""
    graph = Graph()
    differing = compared(graph.file(PATTERNS[name](graph)), images)[0]
    assert differing <= (TIES.get(name, 0.0) if not saturates(OpenVinoModel) else 0.0005)


def test_what_a_convolution_adds_to_another_tensor_is_kept_in_range_and_not_rounded(images) -> None:
    graph = Graph()
    own, plain = compared(graph.file(sum_of_convs(graph)), images)
    assert own <= 0.0005
    assert plain > 0.05


def test_a_sum_that_nothing_rounds_is_of_rounded_tensors(images) -> None:
    graph = Graph()
    content = graph.file(sum_of_convs_in_float(graph))
    real, own = (next(iter(each.tensors(images).values())) for each in (
        OPERATIONS.open(content, threads=1), OPERATIONS.simulated(content)))  # fmt: skip
    torch.testing.assert_close(own, real, rtol=1e-5, atol=1e-5)


def test_values_halfway_between_two_integers_go_the_way_they_go_in_openvino() -> None:
    graph = Graph(stretched=1.0, scale=2 / 255, zero=128)
    content = graph.file(graph.x)
    pixels = torch.arange(256.0).repeat(3 * CHANNELS * SIDE * SIDE // 256 + 1)[: 3 * CHANNELS * SIDE * SIDE]
    own, plain = compared(content, (pixels / 127.5 - 1).view(3, CHANNELS, SIDE, SIDE))
    assert own == 0
    assert plain > 0.1
