"""Sums of products that saturate, against a plain loop over pairs of products in 16 bits."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.operators.in_runtime import open_session
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.rounding import saturation
from senseapp.runtimes.onnxruntime.rounding.saturation import on_other_processors

ZERO, SCALE = 7, np.float32(0.5)  # of the input


@pytest.fixture(autouse=True)
def with_vnni(monkeypatch):
    monkeypatch.setattr(saturation, "saturates", lambda: False)


def a_file(kind, weight, axis, *, codes=np.uint8, rounded=True, **attributes):
    """Return a file of one product of 8 bits and its scales, by output channel."""
    scales = np.linspace(0.01, 0.02, weight.shape[axis]).astype(np.float32)
    stored = {
        "x_scale": SCALE,
        "x_zero": codes(ZERO),
        "w": weight,
        "w_scale": scales,
        "w_zero": np.zeros_like(scales, weight.dtype),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["v"], axis=axis),
        helper.make_node(kind, ["d", "v"], ["y"], "product", **attributes),
        *([helper.make_node("QuantizeLinear", ["y", "x_scale", "x_zero"], ["z"])] if rounded else ()),
    ]
    sizes = [["n", "c", "h", "w"], ["n", "o", "i", "j"]] if kind == "Conv" else [["n", "c"], ["n", "o"]]
    ends = [helper.make_tensor_value_info(*each) for each in zip("xy", [TensorProto.FLOAT] * 2, sizes, strict=True)]
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in stored.items()]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return model.SerializeToString(), scales


def answer(content, images):
    onnx.checker.check_model(onnx.load_from_string(content))
    (found,) = open_session(content, threads=1, fused=False).run(None, {"x": images})
    return found


def in_16_bits(codes, weights):
    """Return the sum of products of a row, two of which are added in 16 bits at a time."""
    total = 0
    for place in range(0, len(codes), 2):
        pair = sum(
            int(code) * int(weight)
            for code, weight in zip(codes[place : place + 2], weights[place : place + 2], strict=True)
        )
        total += min(max(pair, -32768), 32767)
    return total


@pytest.mark.parametrize(
    ("shape", "groups", "stride", "pad", "dilation"),
    [((4, 6, 3, 3), 1, 1, 1, 1), ((4, 3, 3, 3), 1, 2, 1, 1), ((6, 5, 1, 1), 1, 1, 0, 1), ((6, 3, 3, 2), 2, 1, 0, 2)],
)
def test_a_convolution_saturates_as_a_plain_loop_does(shape, groups, stride, pad, dilation):
    generator = np.random.default_rng(0)
    weight = generator.integers(-127, 128, shape).astype(np.int8)
    options = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2, "group": groups}
    content, scales = a_file("Conv", weight, 0, **options)
    codes = generator.choice([0, 30, 200, 255], (2, shape[1] * groups, 7, 6))
    images = ((codes - ZERO) * SCALE).astype(np.float32)
    other = on_other_processors(content)
    assert other is not None
    found, plain = answer(other, images), answer(content, images)
    padded = np.pad(codes, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=ZERO)
    expected = np.zeros_like(found)
    for image, channel, row, column in np.ndindex(found.shape):
        first = channel // (shape[0] // groups) * shape[1]
        patch = padded[image, first : first + shape[1], row * stride :: dilation, column * stride :: dilation]
        seen = np.moveaxis(patch[:, : shape[2], : shape[3]], 0, -1).ravel()  # channels change fastest
        own = np.moveaxis(weight[channel], 0, -1).ravel()
        total = in_16_bits(seen, own) - ZERO * int(own.astype(int).sum())
        expected[image, channel, row, column] = total * SCALE * scales[channel]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-2)
    assert np.abs(plain - expected).max() > 50


@pytest.mark.parametrize(("kind", "axis"), [("MatMul", 1), ("Gemm", 0)])
def test_a_matrix_product_saturates_as_a_plain_loop_does(kind, axis):
    generator = np.random.default_rng(1)
    weight = generator.integers(-127, 128, (9, 5)).astype(np.int8)
    content, scales = a_file(kind, weight if axis else weight.T.copy(), axis, **({} if axis else {"transB": 1}))
    codes = generator.choice([0, 200, 255], (4, 9))
    other = on_other_processors(content)
    assert other is not None
    found = answer(other, ((codes - ZERO) * SCALE).astype(np.float32))
    expected = [
        [(in_16_bits(row, column) - ZERO * int(column.astype(int).sum())) * SCALE * scale
         for column, scale in zip(weight.T, scales, strict=True)]
        for row in codes
    ]  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)


def test_what_cannot_saturate_is_alike_everywhere(monkeypatch):
    weight = np.full((4, 6, 3, 3), 64, np.int8)  # 255 · (64 + 64) fits
    assert on_other_processors(a_file("Conv", weight, 0)[0]) is None
    weight[0, 3, 1, 1] = 65
    assert on_other_processors(a_file("Conv", weight, 0)[0]) is not None
    assert on_other_processors(a_file("Conv", weight, 0, rounded=False)[0]) is None  # which runs in float
    depthwise = np.full((6, 1, 3, 3), 127, np.int8)
    assert on_other_processors(a_file("Conv", depthwise, 0, group=6)[0]) is None
    assert on_other_processors(a_file("Conv", np.full((4, 6, 3, 3), 255, np.uint8), 0)[0]) is None


def test_what_is_not_known_of_other_processors_is_said():
    content, _ = a_file("Conv", np.full((4, 6, 3, 3), 127, np.int8), 0, codes=np.int8)
    with pytest.raises(UnsupportedModel, match="What it does there is not known: node “product”"):
        on_other_processors(content)


def test_where_it_saturates_here_the_other_answer_is_without(monkeypatch):
    monkeypatch.setattr(saturation, "saturates", lambda: True)
    content, _ = a_file("Conv", np.full((4, 6, 3, 3), 127, np.int8), 0)
    assert on_other_processors(content) == content
    images = torch.full((3, 6, 5, 5), 124.0)
    other = runtime_named("onnxruntime").on_other_processors(content)
    assert other is not None
    torch.testing.assert_close(other.run(images), torch.from_numpy(answer(content, images.numpy())))
