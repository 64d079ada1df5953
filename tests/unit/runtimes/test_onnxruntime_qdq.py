"""QDQ files, any nodes of which are in float, beside those of onnxruntime's quantizer, and how it runs them."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import NodeProto, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from torch import nn
from torch.nn import functional

from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.float_graph import FloatGraph
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, int8_nodes
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of
from tests.onnx_graphs import file_of, node, weights

pytestmark = pytest.mark.slow
IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(5))
WEIGHTED = ("Conv", "Gemm", "MatMul")


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
        return self.second(functional.gelu(self.first(functional.avg_pool2d(found, 8).flatten(1))))


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
    writer = Int8Writer(onnx_model(request.param().eval(), IMAGES), [IMAGES])
    writer.in_float = frozenset()  # every kind of node is compared
    return writer, int8_nodes(writer.write())


def quantized(writer: Int8Writer, but: list[str], folder: Path) -> bytes:
    """Return what the quantizer writes with these nodes in float, without rounding between two of them."""
    (folder / "float.onnx").write_bytes(writer.network)
    graph = OnnxGraph(writer.network)
    in_float = {*but, *(each.name for each in graph.nodes if each.op_type == "LayerNormalization")}
    shares = [each.output[0] for each in graph.nodes if each.op_type == "Softmax"]  # from 0 to 1 by the quantizer
    ends = {name: map(np.float32, writer.rounding.ranges[name]) for name in shares}
    quantize_static(
        folder / "float.onnx",
        folder / "int8.onnx",
        SimpleNamespace(get_next=iter([{graph.inputs[0]: IMAGES.numpy()}, None]).__next__),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
        nodes_to_exclude=sorted(in_float),
        extra_options={
            "TensorQuantOverrides": {name: [{"rmin": low, "rmax": high}] for name, (low, high) in ends.items()}
        },
    )
    for each in graph.nodes:  # in order
        maker = graph.maker(each.input[0]) if each.op_type in ("Clip", "Relu") else None
        if maker is not None and maker.name in but:
            in_float.add(each.name)
    file = OnnxGraph((folder / "int8.onnx").read_bytes())
    makers = {name: each for each in file.nodes for name in each.output}
    for last in [each for each in file.nodes if each.op_type == "DequantizeLinear" and each.input[0] in makers]:
        source = makers.get(makers[last.input[0]].input[0])
        if source is None:
            continue
        if last.output[0] in file.outputs:  # which is not rounded here
            source.output[0] = last.output[0]
            file.remove(last, makers[last.input[0]])
        for reader in file.readers(last.output[0]):
            if {reader.name, source.name} <= in_float:
                reader.input[:] = [source.output[0] if name == last.output[0] else name for name in reader.input]
    return file.content()


def outputs_of(content: bytes, *, level: str = "ORT_DISABLE_ALL") -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})[0]


@pytest.mark.parametrize("seed", first_of((0, 3, 1, 2, 4), 2))
def test_files_compute_what_those_of_the_quantizer_do(case, seed: int, tmp_path: Path) -> None:
    writer, nodes = case
    chosen = np.random.default_rng(seed).random(len(nodes)) < (0.0, 0.3, 0.15, 0.5, 0.9)[seed]
    but = [name for name, out in zip(nodes, chosen, strict=True) if out]
    found, expected = writer.write(but=but), quantized(writer, but, tmp_path)
    onnx.checker.check_model(onnx.load_from_string(found))
    assert grids(found) == grids(expected)
    for mine, theirs in zip(integers(found), integers(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def grids(content: bytes) -> dict[str, tuple[Any, int]]:
    """Return scale and zero point of each activation that is rounded and read so."""
    graph = OnnxGraph(content)
    rounding = [each for each in graph.nodes if each.op_type == "QuantizeLinear"]
    read = [each for each in rounding if any(graph.readers(back.output[0]) for back in graph.readers(each.output[0]))]
    values = {each.input[0]: tuple(graph.array(name) for name in each.input[1:]) for each in read}
    return {name: (pytest.approx(float(scale), rel=1e-5), int(zero)) for name, (scale, zero) in values.items()}


def integers(content: bytes) -> list[np.ndarray]:
    """Return weights and biases in order; other constants have 7 bits in files of the quantizer, and 8 in ours."""
    graph = OnnxGraph(content)
    products = [each for each in graph.nodes if each.op_type in WEIGHTED]
    stored = [graph.maker(name) for each in products for name in each.input[1:]]
    found = [graph.array(each.input[0]) for each in stored if each is not None]
    return [each for each in found if each is not None and each.dtype != np.uint8]


def test_the_optimised_file_computes_what_it_says(case) -> None:
    writer, nodes = case
    content = writer.write(but=nodes[1::2])
    literal, optimised = outputs_of(content), outputs_of(content, level="ORT_ENABLE_ALL")
    step = (literal.max() - literal.min()) / 255
    assert np.abs(literal - optimised).max() <= 2.01 * step  # a value on the border of two steps, on each way


def test_onnxruntime_rounds_no_weights_of_nodes_in_float(case, tmp_path: Path) -> None:
    writer, nodes = case
    content = writer.write(but=nodes[1::2])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    graph = OnnxGraph(content)
    in_float = [
        each for each in graph.nodes if each.op_type in ("Conv", "Gemm") and each.input[1] in graph.initializers
    ]
    kinds = [each.op_type.removeprefix("Fused") for each in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert sum(kind in ("Conv", "Gemm") for kind in kinds) == len(in_float)


def constants_of(content: bytes) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load_from_string(content).graph.initializer}


def weighted(network: bytes) -> list[NodeProto]:
    """Return the nodes that multiply with constant weights."""
    graph = OnnxGraph(network)
    return [each for each in graph.nodes if each.op_type in WEIGHTED and each.input[1] in graph.initializers]


def with_weights_of_int8(network: bytes, int8: bytes) -> bytes:
    """Return the float network with the weights that the integers of an int8 file stand for."""
    integers, graph, file = constants_of(int8), OnnxGraph(network), OnnxGraph(int8)
    nodes = {each.name: each for each in file.nodes}
    for each in weighted(network):
        weight = file.maker(nodes[each.name].input[1])
        values, scale = integers[weight.input[0]].astype(np.float32), integers[weight.input[1]]
        axis = next((each.i for each in weight.attribute if each.name == "axis"), 0)
        graph.store(each.input[1], values * scale.reshape([-1 if place == axis else 1 for place in range(values.ndim)]))
    return graph.content()


def test_weights_of_nodes_in_float_are_those_of_the_int8_file_and_stored_as_such(case) -> None:
    writer, nodes = case
    int8, found = writer.write(), writer.write(weights_only=nodes)
    onnx.checker.check_model(onnx.load_from_string(found))
    assert not int8_nodes(found)
    expected = outputs_of(with_weights_of_int8(writer.network, int8))
    np.testing.assert_allclose(outputs_of(found), expected, atol=1e-5)
    assert np.abs(outputs_of(writer.network) - expected).max() > 1e-4
    stored = {each.input[1] for each in weighted(writer.network)}
    assert stored.isdisjoint(constants_of(found))


def test_some_weights_in_8_bits_some_in_32_beside_nodes_in_int8(case) -> None:
    writer, nodes = case
    first, second, *others = [each.name for each in weighted(writer.network) if each.name in nodes]
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
def test_the_smallest_weights_of_nodes_in_float_stay_in_32_bits(kind: str) -> None:
    layers, count = SMALLEST[kind]
    network = onnx_model(nn.Sequential(*layers, nn.Flatten(), nn.Identity()).eval(), IMAGES)
    exact, names = constants_of(network), [each.input[1] for each in weighted(network)]
    writer = Int8Writer(network, [IMAGES])
    found = constants_of(writer.write(weights_only=[each.name for each in weighted(network)]))
    for name in names[:count]:
        np.testing.assert_array_equal(found[name], exact[name])
    assert [found[f"{name}_quantized"].dtype for name in names[count:]] == [np.int8] * (len(names) - count)
    assert found.keys().isdisjoint(names[count:])


SHAPE = (2, 3, 8, 8)
STORED: Mapping[str, np.ndarray] = {
    "to_boxes": np.abs(weights(4, 3, 1, 1)), "to_scores": weights(2, 3, 1, 1, seed=1), "pixels": np.float32(300),
    "further": weights(2, 6, 1, 1, seed=2), "as_rows": np.array([0, -1, 64]),
}  # fmt: skip
PARTS = [
    node("Conv", "x to_boxes", "shares"), node("Mul", "shares pixels", "boxes"),
    node("Conv", "x to_scores", "logits"), node("Sigmoid", "logits", "scores"),
    node("Concat", "boxes scores", "joined", axis=1),
]  # fmt: skip


def test_boxes_in_pixels_and_scores_behind_the_last_weights_are_not_joined_in_8_bits() -> None:
    images = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    behind = [node("Reshape", "joined as_rows", "rows"), node("Transpose", "rows", "y", perm=[0, 2, 1])]
    network = FloatGraph.of(file_of([*PARTS, *behind], STORED, shape=SHAPE, outputs=("y",)), ["y"], SHAPE).part
    content = Int8Writer(network, [images]).write()
    assert Int8Writer(network, [images]).nodes(content) == ["shares", "logits"]
    before, after = (RuntimeModel(each, fused=False).run(images) for each in (network, content))
    for part in (slice(4), slice(4, 6)):
        assert float((after - before)[:, :, part].abs().max()) < 0.02 * float(before[:, :, part].max())
    network = FloatGraph.of(
        file_of([*PARTS, node("Conv", "joined further", "z"), node("Conv", "z again", "y")],
                {**STORED, "again": weights(2, 2, 1, 1)}, shape=SHAPE, outputs=("y",)), ["y"], SHAPE
    ).part  # fmt: skip
    assert "joined" in int8_nodes(Int8Writer(network, [images]).write())


def test_weights_that_are_computed_and_inputs_without_a_range_are_no_failure() -> None:
    images = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    nodes = [
        node("Mul", "w two", "computed"), node("Conv", "x computed bias", "a"), node("Div", "a zero", "endless"),
        node("Conv", "endless again bias", "b"),
        node("Conv", "b again bias", "y"),
    ]  # fmt: skip
    stored = {"w": weights(4, 3, 1, 1), "two": np.float32(2), "zero": np.float32(0), "bias": weights(4, seed=1),
              "again": weights(4, 4, 1, 1, seed=2)}  # fmt: skip
    network = FloatGraph.of(file_of(nodes, stored, shape=SHAPE, outputs=("y",)), ["y"], SHAPE).part
    writer = Int8Writer(network, [images])
    assert writer.nodes(writer.write()) == ["computed", "a"]
    RuntimeModel(writer.write()).run(images)


def test_a_shared_weight_with_a_bias_is_stored_once() -> None:
    """As heads of detectors, which multiply maps of several sizes with one weight."""
    images = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    nodes = [
        node("Conv", "x first", "a"), node("Conv", "a shared bias", "b"),
        node("AveragePool", "a", "p", kernel_shape=[2, 2]),
        node("Conv", "p shared bias", "c"), node("GlobalAveragePool", "b", "d"), node("GlobalAveragePool", "c", "e"),
        node("Add", "d e", "f"), node("Conv", "f last", "g"), node("Conv", "g again", "y"),
    ]  # fmt: skip
    stored = {
        "first": weights(8, 3, 1, 1), "shared": weights(8, 8, 1, 1, seed=1), "bias": weights(8, seed=2),
        "last": weights(4, 8, 1, 1, seed=3), "again": weights(4, 4, 1, 1, seed=4),
    }  # fmt: skip
    network = FloatGraph.of(file_of(nodes, stored, shape=SHAPE, outputs=("y",)), ["y"], SHAPE).part
    content = Int8Writer(network, [images]).write()
    constants = constants_of(content)
    assert sum(each.dtype == np.int8 and each.ndim == 4 for each in constants.values()) == 3
    assert sum(each.dtype == np.int32 and each.size == 8 for each in constants.values()) == 4  # and zero points
    before, after = (RuntimeModel(each, fused=False).run(images) for each in (network, content))
    assert float((after - before).norm()) < 0.05 * float(before.norm())
