"""Recipes: other quantizers leave the nodes in float that a file of ours leaves so."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from torch import nn

from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.int8 import int8_nodes

pytestmark = pytest.mark.slow  # exports a network and quantizes it


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        found = self.stem(images)
        return self.head((found + self.last(found)).mean(dim=(2, 3)))


IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Reader(CalibrationDataReader):
    def __init__(self, name: str) -> None:
        self._left = iter([{name: IMAGES.numpy()}])

    def get_next(self):
        return next(self._left, None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, bytes, dict[str, str]]:
    """A float file, a file of it with a node in float and one with weights of 8 bits only, and its recipes."""
    runtime, network = runtime_named("onnxruntime"), Small().eval()
    content = runtime.exporter(network, IMAGES)(network)
    quantizer = runtime.quantizer(content, [IMAGES])
    products = [name for name in quantizer.nodes(quantizer.write()) if "conv" in name.lower()]
    mixed = quantizer.write(but=products[:1], weights_only=products[1:2])
    path = tmp_path_factory.mktemp("recipes") / "float.onnx"
    path.write_bytes(content)
    return path, mixed, runtime.recipes(mixed)


def input_name(path: Path) -> str:
    return onnx.load(path).graph.input[0].name


def test_the_quantizer_of_onnxruntime_leaves_the_same_nodes_in_float(made) -> None:
    path, mixed, recipes = made
    excluded, target = json.loads(recipes["nodes_to_exclude.json"]), path.with_name("int8.onnx")
    assert not any("unpacked" in name for name in excluded)
    assert {node.name for node in onnx.load(path).graph.node} >= set(excluded)
    quantize_static(path, target, Reader(input_name(path)), per_channel=True, nodes_to_exclude=excluded)
    assert int8_nodes(target.read_bytes()) == int8_nodes(mixed)


def test_the_overrides_are_taken_for_the_npu_of_qualcomm(made) -> None:
    path, _, recipes = made
    overrides, target = json.loads(recipes["qnn_tensor_quant_overrides.json"]), path.with_name("qnn.onnx")
    assert len(overrides) == 2
    for tensor in overrides.values():
        tensor[0]["quant_type"] = QuantType[tensor[0]["quant_type"]]
    quantize(path, target, get_qnn_qdq_config(path, Reader(input_name(path)), init_overrides=overrides))
    graph = onnx.load(target).graph
    zeros = {each.name: each.data_type for each in graph.initializer}
    wide = {
        node.input[0]
        for node in graph.node
        if node.op_type == "QuantizeLinear" and zeros[node.input[2]] == onnx.TensorProto.UINT16
    }
    assert wide >= set(overrides)


def test_nncf_takes_the_scope(made) -> None:
    nncf = pytest.importorskip("nncf", reason="NNCF is not installed")
    path, _, recipes = made
    scope = nncf.IgnoredScope(**json.loads(recipes["nncf_ignored_scope.json"]))
    images = nncf.Dataset([{input_name(path): np.asarray(IMAGES[:1])}])
    in_int8 = int8_nodes(nncf.quantize(onnx.load(path), images, ignored_scope=scope).SerializeToString())
    assert in_int8
    assert not set(in_int8) & set(scope.names)
