"""Quantized weights stored as integers in a float network: the same numbers in fewer bytes."""

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization.grid import GRIDS, IntegerWeight
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
    packed, stored = with_quantized_weights(content, {node: integers[layer] for node, layer in nodes.items()})
    assert stored == 4
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
    for known in (dict.fromkeys(layers_of_nodes(content, ("0",)), integers["0"]), {}):
        assert with_quantized_weights(content, known) == (content, 0)


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
    torch.testing.assert_close(found.dequantized().T, (numbers * scale * factors)[-part:], rtol=2.0**-20, atol=0.0)
    unchanged = integers_of(node_of(numbers * scale), layer)
    assert unchanged is not None
    torch.testing.assert_close(unchanged.dequantized().T, numbers * scale, rtol=2.0**-20, atol=0.0)
    other = numbers.clone()
    other[0, 0] += 1
    assert integers_of(node_of(other * scale), layer) is None
