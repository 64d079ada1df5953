"""GELU that a file writes with Erf is one step: the module's, to the last digits of float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from senseapp.networks.onnx.open import open_onnx
from tests.onnx_files import exported

IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_an_older_export_computes_what_the_module_does_in_float64() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(288, 5)).eval()
    network = open_onnx(exported(module, side=8)).network
    with torch.no_grad():
        expected, found = module.double()(IMAGES.double()), network.double()(IMAGES.double())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def written(order: str, *, half: float = 0.5, root: float = math.sqrt(2)) -> bytes:
    """Return x (1 + erf(x / root)) half as nodes: the half last, first, or beside the sum; divided or multiplied."""
    scaled = ("Mul", ["x", "inverse"]) if order == "first" else ("Div", ["x", "root"])
    products = {
        "last": [("Mul", ["x", "gate"], "p"), ("Mul", ["p", "half"], "y")],
        "first": [("Mul", ["half", "x"], "p"), ("Mul", ["p", "gate"], "y")],
        "beside": [("Mul", ["gate", "half"], "p"), ("Mul", ["x", "p"], "y")],
    }[order]
    nodes = [
        helper.make_node(scaled[0], scaled[1], ["s"]),
        helper.make_node("Erf", ["s"], ["e"]),
        helper.make_node("Add", ["e", "one"] if order == "last" else ["one", "e"], ["gate"]),
        *(helper.make_node(kind, inputs, [output]) for kind, inputs, output in products),
    ]
    nodes = [helper.make_node("Conv", ["image", "weight"], ["x"]), *nodes]
    numbers = {"root": root, "inverse": 1 / root, "one": 1.0, "half": half}
    constants = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()]
    weight = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 8, 8])],
        [*constants, numpy_helper.from_array(weight, "weight")],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.mark.parametrize("order", ["last", "first", "beside"])
def test_each_order_of_the_product_is_one_step_and_equal_to_the_runtime(order: str) -> None:
    opened = open_onnx(written(order))
    assert opened.difference < 1e-6
    assert sum(1 for module in opened.network.modules() if not list(module.children())) == 2  # convolution and GELU


@pytest.mark.parametrize("other", [{"half": 0.4}, {"root": 1.5}])
def test_what_is_another_function_stays_as_it_is_written(other: dict[str, float]) -> None:
    opened = open_onnx(written("last", **other))
    assert opened.difference < 1e-6
    assert sum(1 for module in opened.network.modules() if not list(module.children())) > 2
