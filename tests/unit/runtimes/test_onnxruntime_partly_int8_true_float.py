"""What an int8 file leaves in float, onnxruntime computes in float."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, int8_nodes

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

PRODUCTS = ("Conv", "Gemm")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.point, self.last = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 1)
        self.first, self.second = nn.Linear(16, 20), nn.Linear(20, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.depthwise(self.stem(images).relu())
        found = self.last(self.point(found.relu()).relu())
        return self.second(self.first(found.mean((2, 3))).relu())


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    images = torch.randn(16, 3, 16, 16)
    network = onnx_model(Small().eval(), images)
    with Int8Writer(network, [images], reduce_range=True) as writer:  # nothing saturates without VNNI
        products = [node for node in int8_nodes(writer.write()) if "add" not in node and "mean" not in node]
        return images, writer.write(but=products[1::2])


def run(content: bytes, images: torch.Tensor, level: str) -> tuple[np.ndarray, onnx.ModelProto]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]


def test_the_optimised_file_computes_what_it_says(case):
    images, content = case
    literal, optimised = run(content, images, "ORT_DISABLE_ALL"), run(content, images, "ORT_ENABLE_ALL")
    step = (literal.max() - literal.min()) / 255
    assert np.abs(literal - optimised).max() <= 2.01 * step  # a value on the border of two steps, on each way


def test_onnxruntime_rounds_none_of_their_weights(case, tmp_path):
    _, content = case
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    written = onnx.load_from_string(content)
    onnx.checker.check_model(written)
    real = {each.name for each in written.graph.initializer if each.data_type == onnx.TensorProto.FLOAT}
    in_float = [node for node in written.graph.node if node.op_type in PRODUCTS and node.input[1] in real]
    kinds = [node.op_type.removeprefix("Fused") for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert len(in_float) >= 3
    assert sum(kind in PRODUCTS for kind in kinds) == len(in_float)
