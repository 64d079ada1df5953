"""Norms and constants behind convolutions are folded into their weights in the int8 copy of an uploaded file."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from senseapp.networks.onnx.open import open_onnx
from senseapp.runtimes.onnxruntime.float_graph import FloatGraph
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from tests.onnx_graphs import model_of, node, weights

SHAPE = (2, 3, 8, 8)
SAME = {"pads": [1, 1, 1, 1]}


def norm(name: str, channels: int) -> dict[str, np.ndarray]:
    """Return scale, shift, mean and variance of a norm that makes channels alike that are a thousand times apart."""
    generator = np.random.default_rng(len(name))
    return {
        f"{name}.scale": generator.uniform(0.5, 2, channels).astype(np.float32),
        f"{name}.shift": generator.normal(0, 1, channels).astype(np.float32),
        f"{name}.mean": generator.normal(0, 1, channels).astype(np.float32),
        f"{name}.variance": deviations(channels) ** 2,
    }


def deviations(channels: int) -> np.ndarray:
    return np.geomspace(1e-2, 10, channels).astype(np.float32)


def normed(given: str, made: str, name: str) -> onnx.NodeProto:
    return node("BatchNormalization", f"{given} {name}.scale {name}.shift {name}.mean {name}.variance", made)


def a_file() -> bytes:
    """Return convolutions, transposed and with a bias, before norms, sums and products by constants."""
    nodes = [
        node("Conv", "x one.weight", "a", **SAME), normed("a", "b", "one.norm"), node("Relu", "b", "c"),
        node("ConvTranspose", "c two.weight two.bias", "d", strides=[2, 2], kernel_shape=[2, 2]),
        normed("d", "e", "two.norm"), node("Relu", "e", "f"),
        node("Conv", "f three.weight", "g", **SAME), node("Add", "three.bias g", "h"),
        node("Div", "h three.divisor", "i"), node("Sub", "i three.less", "y"),
    ]  # fmt: skip
    stored = {
        "one.weight": weights(8, 3, 3, 3) * deviations(8)[:, None, None, None], **norm("one.norm", 8),
        "two.weight": weights(8, 6, 2, 2, seed=1) * deviations(6)[:, None, None],
        "two.bias": weights(6, seed=2), **norm("two.norm", 6),
        "three.weight": weights(4, 6, 3, 3, seed=3), "three.bias": weights(1, 4, 1, 1, seed=4),
        "three.divisor": np.array(6.0, np.float32), "three.less": weights(4, 1, 1, seed=5),
    }  # fmt: skip
    return bytes(model_of(nodes, stored, shape=SHAPE).SerializeToString())


def run(content: bytes, images: torch.Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})


def kinds(content: bytes) -> list[str]:
    return [each.op_type for each in onnx.load_from_string(content).graph.node]


def test_what_follows_a_convolution_is_folded_and_outputs_stay() -> None:
    graph, images = FloatGraph.of(a_file(), ["y"], SHAPE), torch.rand(SHAPE)
    content, found = graph.part, graph.folded
    assert kinds(found) == ["Conv", "Relu", "ConvTranspose", "Relu", "Conv"]
    onnx.checker.check_model(onnx.load_from_string(found))
    [before], [after] = run(content, images), run(found, images)
    np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max(), rtol=0)


@pytest.mark.parametrize(
    ("what", "nodes", "stored"),
    [
        ("read twice", [normed("a", "b", "norm"), node("Add", "a b", "y")], norm("norm", 4)),
        ("grouped and transposed", [
            node("ConvTranspose", "a up", "b", group=2, kernel_shape=[1, 1]), normed("b", "y", "norm"),
        ], {"up": weights(4, 2, 1, 1), **norm("norm", 4)}),
        ("by place", [node("Add", "a map", "y")], {"map": weights(1, 4, 8, 8)}),
        ("divided by", [node("Div", "one a", "y")], {"one": np.array(1.0, np.float32)}),
        ("by itself", [node("Mul", "a a", "y")], {}),
        ("by zero", [node("Div", "a zero", "y")], {"zero": np.array(0.0, np.float32)}),
        ("of another axis", [node("Add", "a row", "y")], {"row": weights(8)}),
    ],
)  # fmt: skip
def test_other_nodes_stay(what: str, nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray]) -> None:
    made = [node("Conv", "x weight", "a", **SAME), *nodes]
    content = bytes(model_of(made, {"weight": weights(4, 3, 3, 3), **stored}, shape=SHAPE).SerializeToString())
    graph = FloatGraph.of(content, ["y"], SHAPE)
    assert graph.folded == graph.part, what


def test_an_output_that_is_measured_stays() -> None:
    graph = FloatGraph.of(a_file(), ["a", "y"], SHAPE)
    content, found = graph.part, graph.folded
    assert kinds(found)[:3] == ["Conv", "BatchNormalization", "Relu"]
    np.testing.assert_allclose(run(found, images := torch.rand(SHAPE))[0], run(content, images)[0], atol=1e-5)


def test_a_weight_that_two_convolutions_read_is_folded_for_each() -> None:
    nodes = [
        node("Conv", "x weight", "a", **SAME), normed("a", "b", "first"),
        node("Conv", "b weight", "c", **SAME), normed("c", "y", "other"),
    ]  # fmt: skip
    stored = {"weight": weights(3, 3, 3, 3), **norm("first", 3), **norm("other", 3)}
    content = bytes(model_of(nodes, stored, shape=SHAPE).SerializeToString())
    found, images = FloatGraph.of(content, ["y"], SHAPE).folded, torch.rand(SHAPE)
    [before], [after] = run(content, images), run(found, images)
    np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max(), rtol=0)


def test_the_int8_file_is_the_uploaded_one_without_what_is_folded() -> None:
    opened, images = open_onnx(a_file()), torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    runtime = UploadedRuntime(opened)
    [expected] = run(opened.content, images[0])

    def error_of(content: bytes) -> float:
        return float(np.square(run(content, images[0])[0] - expected).sum() / np.square(expected).sum())

    copy = runtime.quantizer(opened.content, list(images)).write()
    file = runtime.in_place(opened.content, copy)
    np.testing.assert_array_equal(run(file, images[0])[0], run(copy, images[0])[0])
    assert set(kinds(file)) == {"Conv", "ConvTranspose", "QuantizeLinear", "DequantizeLinear"}
    assert any("folded into the weights" in each for each in runtime.changes(file))
    writer = Int8Writer(FloatGraph.of(opened.content, opened.outputs, SHAPE).part, list(images))
    assert error_of(file) < 0.5 * error_of(writer.write())
