"""Activations that a file writes as several nodes are one step: the module's, to the last digits of float64."""

import math

import numpy as np
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import nn

from senseapp.networks.onnx.open import open_onnx
from tests.onnx_files import exported

IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, nn.Hardswish])
def test_an_older_export_computes_what_the_module_does_in_float64(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), activation(), nn.Flatten(), nn.Linear(288, 5)).eval()
    network = open_onnx(exported(module, side=8)).network
    assert _num_steps(network) == 4
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
    return _file(nodes, {"root": root, "inverse": 1 / root, "one": 1.0, "half": half})


def _file(nodes: list[NodeProto], numbers: dict[str, float], version: int = 17) -> bytes:
    """Return a file with a convolution to x, then nodes to y, and constants."""
    nodes = [helper.make_node("Conv", ["image", "weight"], ["x"]), *nodes]
    constants = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()]
    weight = 5 * np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "activation",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 8, 8])],
        [*constants, numpy_helper.from_array(weight, "weight")],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8).SerializeToString()
    )


def _num_steps(network: nn.Module) -> int:
    return sum(1 for module in network.modules() if not list(module.children()))


def hard_swish(order: str, *, three: float = 3.0, six: float = 6.0, version: int = 17) -> bytes:
    """Return x · clip(x + 3, 0, 6) / 6 as nodes: divided last or before the product, or by a factor."""
    limits = ["zero", "limit"] if version >= 11 else []
    attributes = {} if limits else {"min": 0.0, "max": 6.0}
    rest = {
        "last": [("Mul", ["x", "c"], "p"), ("Div", ["p", "six"], "y")],
        "before": [("Div", ["c", "six"], "p"), ("Mul", ["p", "x"], "y")],
        "factor": [("Mul", ["c", "sixth"], "p"), ("Mul", ["x", "p"], "y")],
    }[order]
    nodes = [
        helper.make_node("Add", ["x", "three"], ["a"]),
        helper.make_node("Clip", ["a", *limits], ["c"], **attributes),
        *(helper.make_node(kind, inputs, [output]) for kind, inputs, output in rest),
    ]
    return _file(nodes, {"three": three, "six": six, "sixth": 1 / six, "zero": 0.0, "limit": 6.0}, version)


@pytest.mark.parametrize(
    "content",
    [
        *(written(order) for order in ("last", "first", "beside")),
        *(hard_swish(order) for order in ("last", "before", "factor")),
        hard_swish("last", version=9),
    ],
    ids=["GELU, last", "first", "beside", "hard swish, last", "before", "factor", "of opset 9"],
)
def test_each_order_of_the_products_is_one_step_and_equal_to_the_runtime(content: bytes) -> None:
    opened = open_onnx(content)
    assert opened.difference < 1e-6
    assert _num_steps(opened.network) == 2  # convolution and activation


_NO_SWISH = [("Neg", ["x"], "n"), ("Sigmoid", ["n"], "s"), ("Mul", ["x", "s"], "y")]


@pytest.mark.parametrize(
    "content",
    [
        *(written("last", half=0.4), written("last", root=1.5)),
        *(hard_swish("last", three=2.5), hard_swish("last", six=5.0)),
        _file([helper.make_node(kind, inputs, [output]) for kind, inputs, output in _NO_SWISH], {}),
    ],
    ids=["half", "root", "three", "six", "gate"],
)
def test_what_is_nearly_an_activation_stays_as_it_is_written(content: bytes) -> None:
    opened = open_onnx(content)
    assert opened.difference < 1e-6
    assert _num_steps(opened.network) > 2
