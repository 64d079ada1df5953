"""Products that run in integers and their multiplications, against numbers worked out by hand."""

import pytest
import torch
from torch import nn

from senseapp.networks.onnx.graph import OnnxGraph
from senseapp.networks.onnx.open import open_onnx
from senseapp.reconstruct.write import onnx_model
from senseapp.records.executed import IntegerShare
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.uploaded import UploadedRuntime
from senseapp.runtimes.openvino.operations import UploadedOpenVino
from tests.cases import first_of
from tests.unit.runtimes.test_onnxruntime_uploaded import a_file

pytestmark = pytest.mark.slow  # exports a network

IMAGES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
MACS = {
    "first": 8 * 8 * 16 * 27,  # places, outputs, inputs of each
    "depthwise": 8 * 8 * 16 * 9,
    "up": 8 * 8 * 16 * 4 * 4,  # places that it reads, inputs, outputs of each
    "head": 5 * 4,
}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.depthwise = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.up, self.head = nn.ConvTranspose2d(16, 4, 2, stride=2), nn.Linear(4, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.up(self.depthwise(self.first(images).relu()).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_products_in_integers_are_counted_in_what_runs(name: str) -> None:
    runtime, content = runtime_named(name), onnx_model(Small().eval(), IMAGES[:2])
    quantizer = runtime.quantizer(content, [IMAGES])
    layers = runtime.layers_of_nodes(content, MACS)
    kept = [node for node, layer in layers.items() if layer == "depthwise"]
    found = IntegerShare.of(runtime.executed(quantizer.write(but=kept)), kept=kept, layers=layers)
    assert found is not None
    assert (len(found.products), found.macs) == (4, sum(MACS.values()))
    reasons = {each.name: each.reason for each in found.in_float}
    assert reasons.pop("depthwise") == "8 bits harm the answers"
    assert reasons == (
        {"up": "the runtime computes it in float"} if name == "onnxruntime" else {}
    )  # which transposes in float alone
    macs = {each.name: each.macs for each in found.in_float}
    assert macs == {layer: MACS[layer] for layer in macs}
    assert found.share == 1 - sum(macs.values()) / sum(MACS.values())
    assert 0 < found.integer_nodes < found.nodes
    in_float = IntegerShare.of(runtime.executed(content), kept=(), layers=layers)
    assert in_float is not None
    assert (in_float.share, in_float.integer_nodes) == (0.0, 0)
    assert {each.reason for each in in_float.in_float} == {"not quantized"}


@pytest.mark.parametrize("kind", [UploadedRuntime, UploadedOpenVino])
@pytest.mark.parametrize("named", first_of([True, False]))
def test_parts_of_an_uploaded_file_that_stay_in_float_are_named_as_the_search_does(kind, named: bool) -> None:
    content = a_file(named=named)
    runtime = kind(open_onnx(content))
    quantizer = runtime.quantizer(content, [IMAGES])
    (kept,) = [node.name for node in OnnxGraph(quantizer.network).nodes if "second.weight" in node.input]
    file = runtime.in_place(content, quantizer.write(but=[kept]))
    found = IntegerShare.of(runtime.executed(file), kept=[kept], layers={kept: "second"})
    assert found is not None
    assert [(each.name, each.reason) for each in found.in_float] == [("second", "8 bits harm the answers")]
    macs = (8 * 8 * 8 * 27, 8 * 8 * 8 * 72, 6 * 8)
    assert (found.macs, found.share) == (sum(macs), 1 - macs[1] / sum(macs))
    assert "Left in float" not in found.sentence


def test_openvino_multiplies_rounded_inputs_by_weights_of_8_bits_in_integers() -> None:
    content = a_file()
    runtime = UploadedOpenVino(open_onnx(content))
    quantizer = runtime.quantizer(content, [IMAGES])
    (kept,) = [node.name for node in OnnxGraph(quantizer.network).nodes if "second.weight" in node.input]
    file = runtime.in_place(content, quantizer.write(weights_only=[kept]))
    found = IntegerShare.of(runtime.executed(file), kept=[kept], layers={kept: "second"})
    assert found is not None
    assert (found.share, found.in_float) == (1.0, [])
    assert found.sentence.endswith("but computed in integers by the runtime: second.")
