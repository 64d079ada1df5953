"""Files of which some nodes are in float: as onnxruntime's quantizer writes them, and as it runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from torch import nn
from torch.nn import functional

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding, int8_nodes
from senseapp.runtimes.onnxruntime.qdq import compute_in_float
from senseapp.runtimes.onnxruntime.rounding.fitted_weights import rounded_products
from senseapp.runtimes.onnxruntime.rounding.products import products
from senseapp.runtimes.onnxruntime.rounding.ranges import ranges, rounded_tensors
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of

pytestmark = pytest.mark.slow
IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(5))
_FUSED = ("Clip", "Relu")
_PASSING = ("MaxPool", "AveragePool", "Reshape", "Transpose", "Slice", "Split")


class Branches(nn.Module):
    """Folded and kept activations, pooling, an addition, a constant factor, a product of two activations, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point, self.gate = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 4)
        self.factor = nn.Parameter(torch.rand(8, 1, 1) + 0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = functional.max_pool2d(self.stem(images).clamp(0, 2), 2)
        found = self.depthwise(found).relu() + self.factor * found
        raw = self.point(found)
        found = raw.relu() + raw * self.gate(found.mean((2, 3), keepdim=True)).sigmoid()
        flat = functional.avg_pool2d(found, 8).flatten(1)
        return self.second(functional.gelu(self.first(flat)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, 12, 4, stride=4), nn.LayerNorm(12), nn.Linear(12, 4)
        self.queries, self.values = nn.Linear(12, 24), nn.Linear(12, 12)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.patch(images).flatten(2).transpose(1, 2))
        queries, keys = self.queries(tokens).chunk(2, -1)
        scores = (queries @ keys.transpose(1, 2) / 3.5).softmax(-1)
        return self.head((tokens + scores @ self.values(tokens)).mean(1))


@pytest.fixture(scope="module", params=[Branches, Attention])
def case(request):
    torch.manual_seed(0)
    network = onnx_model(request.param().eval(), IMAGES)
    with Int8Writer(network, [IMAGES], reduce_range=True) as writer:  # nothing saturates without VNNI
        int8 = writer.write()
        nodes = int8_nodes(int8)
        found = ranges(network, [IMAGES], rounded_tensors(int8), ["minmax"])["minmax"]
        for node in onnx.load_from_string(network).graph.node:  # in order
            if node.op_type in _PASSING and node.input[0] in found:
                found |= dict.fromkeys(node.output, found[node.input[0]])
        writer.rounding = Rounding(ranges=found)
        yield writer, nodes


def quantized(writer: Int8Writer, but: list[str], folder) -> onnx.ModelProto:
    """Return what the quantizer writes, then without rounding between nodes in float."""
    (folder / "float.onnx").write_bytes(writer.network)
    overrides = {
        name: [{"rmin": np.float32(low), "rmax": np.float32(high)}]
        for name, (low, high) in writer.rounding.ranges.items()
    }
    quantize_static(
        folder / "float.onnx",
        folder / "int8.onnx",
        None,
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
        nodes_to_exclude=but,
        calibration_cache_path=writer._folder.name + "/ranges.json",
        extra_options={"TensorQuantOverrides": overrides},
    )
    model = onnx.load(folder / "int8.onnx")
    makers = {name: node.name for node in onnx.load_from_string(writer.network).graph.node for name in node.output}
    in_float = set(but)
    for node in onnx.load_from_string(writer.network).graph.node:
        if node.op_type in _FUSED and makers.get(node.input[0]) in in_float:
            in_float.add(node.name)
    graph, outputs = model.graph, {each.name for each in model.graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    for last in [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in makers]:
        source = makers.get(makers[last.input[0]].input[0])
        readers = [node for node in graph.node if last.output[0] in node.input]
        if source is None:
            continue
        if last.output[0] in outputs and source.op_type in ("Gemm", "MatMul") and not readers:
            source.output[0] = last.output[0]
            graph.node.remove(last)
        for node in readers:
            if {node.name, source.name} <= in_float:
                node.input[:] = [source.output[0] if name == last.output[0] else name for name in node.input]
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        read = {name for node in graph.node for name in node.input} | outputs
        for node in [node for node in graph.node if node.op_type == kind and node.output[0] not in read]:
            graph.node.remove(node)
    compute_in_float(graph)
    return model


def wiring(model: onnx.ModelProto) -> Counter:
    """Return kinds of nodes with the values of their constants and the kinds that their inputs come from."""
    graph = model.graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    makers = {name: (node.op_type, node.name) for node in graph.node for name in node.output}
    return Counter(
        (node.op_type, *(repr(values[name]) if name in values else makers.get(name, name) for name in node.input))
        for node in graph.node
    )


def outputs_of(content: bytes) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})[0]


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_rewired_files_are_those_of_the_quantizer(case, seed, tmp_path):
    writer, nodes = case
    share = (0.0, 0.15, 0.3, 0.5, 0.9)[seed]
    chosen = np.random.default_rng(seed).random(len(nodes)) < share
    but = [node for node, out in zip(nodes, chosen, strict=True) if out]
    expected, found = quantized(writer, but, tmp_path), writer.write(but=but)
    onnx.checker.check_model(onnx.load_from_string(found))
    assert wiring(onnx.load_from_string(found)) == wiring(expected)
    assert np.array_equal(outputs_of(found), outputs_of(expected.SerializeToString()))


def constants_of(content: bytes) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load_from_string(content).graph.initializer}


def weighted(network: bytes) -> list[onnx.NodeProto]:
    """Return the nodes that multiply with constant weights."""
    graph = onnx.load_from_string(network).graph
    known = {each.name for each in graph.initializer if len(each.dims) > 1}
    return [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in known]


def with_weights_of_int8(network: bytes, int8: bytes) -> bytes:
    """Return the float network with the weights that the integers of an int8 file stand for."""
    integers, model, graph = constants_of(int8), onnx.load_from_string(network), onnx.load_from_string(int8).graph
    known = {each.name: each for each in model.graph.initializer}
    dequantizing = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    nodes = {node.name: node for node in graph.node}
    for node in weighted(network):
        weight = dequantizing[nodes[node.name].input[1]]
        values, scale = integers[weight.input[0]].astype(np.float32), integers[weight.input[1]]
        axis = next((each.i for each in weight.attribute if each.name == "axis"), 0)
        shape = [scale.size if place == axis else 1 for place in range(values.ndim)]
        spread = scale.reshape(shape if scale.size > 1 else ())
        known[node.input[1]].CopyFrom(numpy_helper.from_array(values * spread, node.input[1]))
    return model.SerializeToString()


def test_weights_of_nodes_in_float_are_those_of_the_int8_file_and_stored_as_such(case):
    writer, nodes = case
    int8, found = writer.write(), writer.write(weights_only=nodes)
    onnx.checker.check_model(onnx.load_from_string(found))
    assert not int8_nodes(found)
    expected = outputs_of(with_weights_of_int8(writer.network, int8))
    np.testing.assert_allclose(outputs_of(found), expected, atol=1e-5)
    assert np.abs(outputs_of(writer.network) - expected).max() > 1e-4
    weights = {node.input[1] for node in weighted(writer.network)}
    assert weights
    assert weights.isdisjoint(constants_of(found))


def test_some_weights_in_8_bits_some_in_32_beside_nodes_in_int8(case):
    writer, nodes = case
    first, second, *others = [node.name for node in weighted(writer.network) if node.name in nodes]
    content = writer.write(but=[first], weights_only=[second])
    left = set(int8_nodes(content))
    assert left.isdisjoint({first, second})
    assert left >= set(others)
    computed, meant = RuntimeModel(content).run(IMAGES), RuntimeModel(content, fused=False).run(IMAGES)
    assert float((computed - meant).square().mean()) < 1e-3 * float(meant.square().mean())


SMALLEST = {
    "the first two in 32 bits add 4 % to the bytes of all in 8, with the third 37 %": (
        (nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 96, 1), nn.Conv2d(96, 64, 1)),
        2,
    ),
    "three add 3 % each, but 5 % are free for all together": (
        (*(nn.Conv2d(3, 3, 1) for _ in range(3)), nn.Conv2d(3, 96, 1), nn.Conv2d(96, 6, 1)),
        1,
    ),
}


@pytest.mark.parametrize("kind", SMALLEST)
def test_the_smallest_weights_of_nodes_in_float_stay_in_32_bits(kind: str):
    layers, count = SMALLEST[kind]
    network = onnx_model(nn.Sequential(*layers).eval(), IMAGES)
    with Int8Writer(network, [IMAGES], rounding=Rounding()) as writer:
        found = constants_of(writer.write(weights_only=int8_nodes(writer.write())))
    exact, names = constants_of(network), [node.input[1] for node in weighted(network)]
    for name in names[:count]:
        np.testing.assert_array_equal(found[name], exact[name])
    assert [found[f"{name}_quantized"].dtype for name in names[count:]] == [np.int8] * (len(names) - count)
    assert found.keys().isdisjoint(names[count:])


def test_a_bias_takes_up_what_rounded_weights_change_of_the_mean():
    torch.manual_seed(0)
    images = [2 + IMAGES]
    network = onnx_model(nn.Sequential(nn.Conv2d(3, 8, 1)).eval(), IMAGES)
    (product,) = products(onnx.load_from_string(network))
    with Int8Writer(network, images, reduce_range=True) as writer:
        found = ranges(network, images, rounded_tensors(writer.write()), ["minmax"])["minmax"]
        fitted = rounded_products(network, images, [product], found, largest=3, progress=lambda _step: None)
        means = []
        for each in (fitted, {name: replace(one, float_offsets=None) for name, one in fitted.items()}):
            writer.rounding = Rounding(ranges=found, products=each)
            change = RuntimeModel(writer.write(weights_only=[product.node])).run(images[0])
            means.append(float((change - RuntimeModel(network).run(images[0])).mean((0, 2, 3)).abs().max()))
    assert means[0] < 0.02 < means[1]
