"""Corrected biases of int8 files: means of products on the images of calibration, and harm to others."""

from collections.abc import Mapping

import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from senseapp.networks.network import Network
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime import int8
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.rounding.bias import BiasCorrection
from senseapp.runtimes.onnxruntime.rounding.qdq import Rounding
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
    writer = Int8Writer(network, [FITTED])
    writer.rounding = clipped(network)
    return writer.write()


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
    """Those without a bias cannot."""
    file = BiasCorrection(network, [FITTED]).corrected(coarse)
    onnx.checker.check_model(onnx.load_from_string(file))
    wanted, before, after = (means_of_products(each, FITTED) for each in (network, coarse, file))
    nodes = onnx.load_from_string(network).graph.node
    biased = [node.name for node in nodes if node.name in wanted and len(node.input) == 3]
    assert len(biased) == 6 < len(wanted)
    for node in biased:
        moved, left = (float((each[node] - wanted[node]).square().sum()) for each in (before, after))
        assert left < 0.05 * moved + 1e-6, node


def test_a_file_of_a_fixed_batch_has_the_same_biases(network, coarse):
    """Calls then have few images, each of which shifts means otherwise."""

    def fixed(content: bytes) -> bytes:
        model = onnx.load_from_string(content)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 2
        return model.SerializeToString()

    free = BiasCorrection(network, [FITTED]).corrected(coarse)
    found = BiasCorrection(fixed(network), [FITTED]).corrected(fixed(coarse))
    wanted, left = (means_of_products(each, FITTED[:2]) for each in (free, found))
    for node, means in wanted.items():
        torch.testing.assert_close(left[node], means, rtol=0.1, atol=0.05 * float(means.abs().max()))


def test_corrected_biases_do_less_harm_to_other_images(network, coarse):
    reference = RuntimeModel(network).run(OTHERS)
    corrected = BiasCorrection(network, [FITTED]).corrected(coarse)
    before, after = (
        float((RuntimeModel(each).run(OTHERS) - reference).square().mean()) for each in (coarse, corrected)
    )
    assert after < 0.5 * before


@pytest.mark.parametrize("by", [1, -1])
def test_the_correction_is_kept_where_it_does_less_harm(network, coarse, monkeypatch, by):
    """A judge to whom it does more harm refuses it."""
    reference = RuntimeModel(network).run(OTHERS)
    rounding = clipped(network)
    monkeypatch.setattr(int8, "chosen_rounding", lambda *_args, **_options: rounding)

    def harms_of(opened: Network) -> list[float]:
        return ((opened.run(OTHERS) - reference).square().view(4, -1).mean(1) ** by).tolist()

    fitting = Fitting(batches=[FITTED], damages_of=harms_of)
    quantizer = OPERATIONS.fitted_quantizer(network, fitting)
    file = quantizer.write()
    assert (quantizer.finished(file) != file) == (by == 1)
    assert any("Biases are corrected" in note for note in quantizer.notes) == (by == 1)
