"""Corrected biases of int8 files, and the stepwise computation that they are found by, beside whole networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from senseapp.networks.network import Network
from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.qdq import Rounding
from senseapp.runtimes.onnxruntime.rounding import fit
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection, StepwiseNetwork, shrunk
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.quantizers import Fitting

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.rand(48, 3, 16, 16, generator=torch.Generator().manual_seed(0)) ** 2
FITTED, OTHERS = IMAGES[:24], IMAGES[24:]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU6(), nn.Conv2d(8, 8, 1))

    def forward(self, given: Tensor) -> Tensor:
        return given + self.layers(given)


@pytest.fixture(scope="module")
def network() -> bytes:
    torch.manual_seed(0)
    ends = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 1, bias=False)
    pooled = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    return onnx_model(nn.Sequential(ends[0], nn.ReLU6(), Residual(), Residual(), ends[1], *pooled).eval(), IMAGES[:1])


@pytest.fixture(scope="module")
def coarse(network: bytes) -> bytes:
    """The network in int8, with ranges that clip the largest values, so that means move."""
    return _coarse(network)


def _coarse(network: bytes, *in_float: str) -> bytes:
    writer = Int8Writer(network, [FITTED])
    writer.rounding = clipped(network)
    return writer.write(but=in_float)


def clipped(network: bytes) -> Rounding:
    found = Int8Writer(network, [FITTED]).rounding.ranges
    return Rounding(ranges={name: (0.5 * low, 0.5 * high) for name, (low, high) in found.items()})


def tensors_in(file: bytes, images: Tensor) -> Mapping[str, Tensor]:
    """Return all tensors of real numbers that nodes make, by onnxruntime without its optimisations of QDQ."""
    model = onnx.load_from_string(file)
    shown = {each.name for each in model.graph.output}
    made = [node.output[0] for node in model.graph.node if node.op_type not in ("QuantizeLinear", "Shape")]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in made if name not in shown)
    return {"x": images} | RuntimeModel(model.SerializeToString(), fused=False).tensors(images)


def means_of_products(file: bytes, images: Tensor) -> dict[str, Tensor]:
    """Return the mean of each channel of each convolution and matrix product."""
    products = [node for node in onnx.load_from_string(file).graph.node if node.op_type in ("Conv", "Gemm")]
    seen = tensors_in(file, images)
    return {node.name: seen[node.output[0]].movedim(1, -1).flatten(0, -2).mean(0) for node in products}


def test_products_keep_the_means_that_they_have_in_float(network, coarse):
    """Those without a bias cannot; chance is taken off, so means come close, no more."""
    file = BiasCorrection(network, [FITTED]).corrected(coarse)
    onnx.checker.check_model(onnx.load_from_string(file))
    wanted, before, after = (means_of_products(each, FITTED) for each in (network, coarse, file))
    nodes = onnx.load_from_string(network).graph.node
    biased = [node.name for node in nodes if node.name in wanted and len(node.input) == 3]
    assert len(biased) == 6 < len(wanted)
    for node in biased:
        moved, left = (float((each[node] - wanted[node]).square().sum()) for each in (before, after))
        assert left < 0.05 * moved + 1e-6, node


def test_corrected_biases_do_less_harm_to_other_images(network, coarse):
    reference = RuntimeModel(network).run(OTHERS)
    corrected = BiasCorrection(network, [FITTED]).corrected(coarse)
    before, after = (
        float((RuntimeModel(each).run(OTHERS) - reference).square().mean()) for each in (coarse, corrected)
    )
    assert after < 0.5 * before


def test_nodes_in_float_are_corrected_too(network, coarse):
    """The last product computes in float behind others in int8, whose means move its own."""
    last = next(node.name for node in onnx.load_from_string(network).graph.node if node.op_type == "Gemm")
    file = _coarse(network, last)
    corrected = BiasCorrection(network, [FITTED]).corrected(file)
    wanted, before, after = (means_of_products(each, FITTED)[last] for each in (network, file, corrected))
    assert float((after - wanted).abs().max()) < 0.3 * float((before - wanted).abs().max())


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 64), st.integers(3, 40), st.floats(0, 3), st.integers(0, 10**6))
def test_shrunk_means_are_no_farther_from_the_true_ones(images, channels, size, seed):
    """In the mean over draws, which James and Stein prove for known variance and three channels or more."""
    generator = torch.Generator().manual_seed(seed)
    true = size * torch.randn(channels, generator=generator) / images**0.5
    plain, ours = 0.0, 0.0
    for _ in range(200):
        seen = true + torch.randn(images, channels, generator=generator)
        plain += float((seen.mean(0) - true).square().sum())
        ours += float((shrunk(seen) - true).square().sum())
    assert ours <= 1.02 * plain


def test_one_image_and_equal_images_say_what_they_can():
    assert not shrunk(torch.ones(1, 3)).any()
    torch.testing.assert_close(shrunk(torch.ones(2, 3)), torch.ones(3))
    assert not shrunk(torch.zeros(4, 3)).any()


@pytest.mark.parametrize("by", [1, -1])
def test_the_correction_is_kept_where_it_does_less_harm(network, coarse, monkeypatch, by):
    """A judge to whom it does more harm refuses it."""
    reference = RuntimeModel(network).run(OTHERS)
    rounding = clipped(network)
    monkeypatch.setattr(fit, "chosen_rounding", lambda *_args, **_options: rounding)

    def harms_of(opened: Network) -> list[float]:
        return ((opened.run(OTHERS) - reference).square().view(4, -1).mean(1) ** by).tolist()

    fitting = Fitting(batches=[FITTED], damage_of=lambda opened: sum(harms_of(opened)), damages_of=harms_of)
    quantizer = OPERATIONS.fitted_quantizer(network, fitting)
    file = quantizer.write()
    assert (quantizer.finished(file) != file) == (by == 1)
    assert any("Biases are corrected" in note for note in quantizer.notes) == (by == 1)


def test_tensors_one_by_one_are_those_of_the_whole_network(network, coarse):
    for file in (network, coarse):
        expected = tensors_in(file, FITTED[:4])
        stepwise = StepwiseNetwork(OnnxGraph(file), [FITTED[:3].numpy(), FITTED[3:4].numpy()])
        for node in onnx.load_from_string(file).graph.node:
            if node.op_type in ("Conv", "Add", "Gemm"):
                found = np.concatenate(stepwise.values(node.output[0]))
                torch.testing.assert_close(torch.from_numpy(found), expected[node.output[0]], rtol=1e-4, atol=1e-4)


def test_what_is_added_to_a_tensor_counts_for_all_that_is_made_of_it(network):
    """As a larger bias of the first convolution, which a residual branch and its shortcut read."""
    model = onnx.load_from_string(network)
    first = model.graph.node[0]
    stepwise = StepwiseNetwork(OnnxGraph(model), [FITTED.numpy()])
    stepwise.values(first.output[0])
    stepwise.add(first.output[0], np.full((8, 1, 1), 0.25, np.float32))
    (found,) = stepwise.values(model.graph.output[0].name)
    bias = next(each for each in model.graph.initializer if each.name == first.input[2])
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.25), bias.name))
    expected = RuntimeModel(model.SerializeToString()).run(FITTED)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_graphs_inside_of_nodes_read_tensors_outside():
    """Both branches of a condition read what nothing else does."""
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    scaled = helper.make_graph([helper.make_node("Mul", ["doubled", "two"], ["out"])], "then", [], [out])
    same = helper.make_graph([helper.make_node("Identity", ["doubled"], ["out"])], "else", [], [out])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("Relu", ["x"], ["asked"]),
        helper.make_node("If", ["asks"], ["out"], then_branch=scaled, else_branch=same),
    ]
    for asks, expected in ((True, [4, -8]), (False, [2, -4])):
        constants = [numpy_helper.from_array(np.array(asks), "asks"), numpy_helper.from_array(np.float32([2]), "two")]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
        graph = helper.make_graph(nodes, "graph", [given], [out], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        stepwise = StepwiseNetwork(OnnxGraph(model), [np.array([1, -2], np.float32)])
        assert stepwise.values("asked")[0].tolist() == [1, 0]
        assert stepwise.values("doubled")[0].tolist() == [2, -4]
        assert stepwise.values("out")[0].tolist() == expected
