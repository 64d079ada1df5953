"""Quantized weights stored as integers in a float network: the same numbers in fewer bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization.grid import GRIDS
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import layers_of_nodes
from senseapp.runtimes.onnxruntime.integer_weights import integers_of, with_quantized_weights
from senseapp.runtimes.onnxruntime.rounding.products import WeightedNode
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of

pytestmark = pytest.mark.slow  # exports a network

IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def quantized_network(bits: int) -> tuple[nn.Module, dict[str, IntegerWeight]]:
    """Return a network of convolutions, a folded norm and a linear layer, and the integers of its layers."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 48)),
    ).eval()
    network[1].running_var.uniform_(0.5, 2)
    network[1].weight.data.uniform_(-1, 2)
    grid, integers = GRIDS["int"](bits), {}
    allowed = WeightGrid(nearest=grid.nearest, largest=grid.largest)
    with torch.no_grad():
        for name, module in network.named_children():
            if isinstance(module, nn.Conv2d | nn.Linear):
                scale = module.weight.flatten(1).abs().amax(1) / grid.largest
                scale = scale.reshape(-1, *[1] * (module.weight.dim() - 1))
                module.weight.copy_(grid.nearest(module.weight / scale) * scale)
                integers[name] = IntegerWeight.of(module.weight, scale, allowed)
    return network, integers


@pytest.mark.parametrize("bits", first_of([4, 2, 8]))
def test_the_file_computes_the_same_in_fewer_bytes(bits: int) -> None:
    network, integers = quantized_network(bits)
    content = onnx_model(network, IMAGES[:1])
    nodes = layers_of_nodes(content, ("0", "3", "5", "8"))
    found = with_quantized_weights(content, nodes, {node: integers[layer] for node, layer in nodes.items()})
    packed, in_operator = found.content, bits <= 4
    told = ["Weights of 4 layers are stored as integers, and computed with in float."]
    if in_operator:
        told = [
            told[0].replace("4", "3"),
            "Weights of 1 layer are in 4 bits in onnxruntime's operator for them (MatMulNBits).",
        ]
    assert list(found.notes) == told
    onnx.checker.check_model(onnx.load_from_string(packed))
    with torch.no_grad():
        expected = network(IMAGES)
    np.testing.assert_allclose(RuntimeModel(packed).run(IMAGES), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        RuntimeModel(packed).run(IMAGES), RuntimeModel(content).run(IMAGES), rtol=1e-6, atol=1e-7
    )
    weights = sum(module.weight.numel() for module in network if isinstance(module, nn.Conv2d | nn.Linear))
    saved = len(content) - len(packed)
    assert saved > weights * (4 - (0.5 if bits <= 4 else 1)) - 4000  # scales and the nodes that unpack


def test_weights_that_their_integers_do_not_make_stay_as_they_are() -> None:
    network, integers = quantized_network(4)
    with torch.no_grad():
        network[0].weight += 0.01 * torch.randn(network[0].weight.shape)
    content = onnx_model(network, IMAGES[:1])
    nodes = layers_of_nodes(content, ("0",))
    for known in (dict.fromkeys(nodes, integers["0"]), {}):
        found = with_quantized_weights(content, nodes, known)
        assert found.content == content
        assert found.notes == ("Weights of 1 layer are rounded as the schedule says, and stored in 32 bits.",)


def node_of(values: Tensor) -> WeightedNode:
    return WeightedNode(node="n", kind="Gemm", input="x", weight="w", bias=None, values=values.T, offsets=None)


@settings(deadline=None)
@given(bits=st.integers(2, 8), exponent=st.integers(-30, 20), seed=st.integers(0, 10**6), part=st.sampled_from([3, 6]))
def test_a_folded_norm_changes_scales_and_no_integer(bits: int, exponent: int, seed: int, part: int) -> None:
    """Rows need not reach the largest integer, some are 0, and a node may have only some of the layer's channels."""
    generator = torch.Generator().manual_seed(seed)
    largest = 2 ** (bits - 1) - 1
    numbers = torch.randint(-largest, largest + 1, (6, 9), generator=generator).float()
    numbers[1] = 0
    scale = (0.5 + torch.rand(6, 1, generator=generator)) * 2.0**exponent
    layer = IntegerWeight.of(numbers * scale, scale, WeightGrid(nearest=torch.round, largest=largest))
    assert torch.equal(layer.values.float(), numbers)
    factors = 0.1 + torch.rand(6, 1, generator=generator)
    found = integers_of(node_of((numbers * scale * factors)[-part:]), layer)
    assert found is not None
    assert torch.equal(found.values.T.float(), numbers[-part:])
    torch.testing.assert_close(found.dequantized().T, (numbers * scale * factors)[-part:], rtol=2.0**-22, atol=0.0)
    unchanged = integers_of(node_of(numbers * scale), layer)
    assert unchanged is not None
    assert torch.equal(unchanged.dequantized().T, numbers * scale)
    other = numbers.clone()
    other[0, 0] += 1
    assert integers_of(node_of(other * scale), layer) is None


class Mixed(nn.Module):
    """Products with a bias and without, of tokens and of rows, of no whole number of blocks; and a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.tokens = nn.Conv2d(3, 20, 2, stride=2), nn.Linear(20, 320)
        self.plain, self.head = nn.Linear(320, 40, bias=False), nn.Linear(40, 10)

    def forward(self, given: Tensor) -> Tensor:
        tokens = torch.relu(self.tokens(self.kernel(given).flatten(2).transpose(1, 2)))
        return self.head(torch.relu(self.plain(tokens.mean(1))))


def rounded_mixed(largest: int) -> tuple[nn.Module, bytes, dict[str, IntegerWeight]]:
    """Return a network whose weights are up to ``largest`` steps, its file, and integers by node; one row is 0."""
    torch.manual_seed(largest)
    network, scales = Mixed().eval(), {}
    with torch.no_grad():
        for name, module in network.named_children():
            steps = torch.randint(-largest, largest + 1, module.weight.shape).float()
            scales[name] = (0.01 + torch.rand(len(steps))).view(-1, *[1] * (steps.dim() - 1))
            module.weight.copy_(steps * scales[name])
        network.tokens.weight[3] = 0
    content, found = onnx_model(network, IMAGES[:1]), {}
    for node, layer in layers_of_nodes(content, list(scales)).items():
        weight = network.get_submodule(layer).weight.detach()
        found[node] = IntegerWeight.of(weight, scales[layer], WeightGrid(nearest=torch.round, largest=8))
    return network, content, found


@pytest.mark.parametrize("largest", first_of([7, 1, 3]))
def test_products_in_four_bits_give_what_the_rounded_network_gives(largest: int) -> None:
    network, content, integers = rounded_mixed(largest)
    found = with_quantized_weights(content, integers, integers).content
    kinds = [node.op_type for node in onnx.load_from_string(found).graph.node]
    assert kinds.count("MatMulNBits") == 3
    onnx.checker.check_model(onnx.load_from_string(found))
    with torch.no_grad():
        expected = network(IMAGES)
    rounding_error = 2e-6 * float(expected.abs().max())
    torch.testing.assert_close(RuntimeModel(found).run(IMAGES), expected, rtol=1e-4, atol=rounding_error)
    linear = 4 * sum(module.weight.numel() for module in network.modules() if isinstance(module, nn.Linear))
    assert len(content) - len(found) > 0.7 * linear


def test_more_steps_than_four_bits_hold_are_no_operator_s() -> None:
    _, content, integers = rounded_mixed(8)
    found = with_quantized_weights(content, integers, integers).content
    assert all(node.op_type != "MatMulNBits" for node in onnx.load_from_string(found).graph.node)
