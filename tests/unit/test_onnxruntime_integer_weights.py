"""Quantized weights stored as integers in a float network: the same numbers in fewer bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from senseapp.compressions.quantization.grid import GRIDS
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.int8 import layers_of_nodes
from senseapp.runtimes.onnxruntime.integer_weights import with_integer_weights
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of

pytestmark = pytest.mark.slow  # exports a network

IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def quantized_network(bits: int) -> nn.Module:
    """A network with convolutions, a depthwise one among them, a norm that is folded, and a linear layer, on grids."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 48)),
    ).eval()
    network[1].running_var.uniform_(0.5, 2)
    network[1].weight.data.uniform_(-1, 2)
    grid = GRIDS["int"](bits)
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.Conv2d | nn.Linear):
                scale = module.weight.flatten(1).abs().amax(1) / grid.largest
                scale = scale.reshape(-1, *[1] * (module.weight.dim() - 1))
                module.weight.copy_(grid.nearest(module.weight / scale) * scale)
    return network


@pytest.mark.parametrize("bits", first_of([4, 2, 8]))
def test_the_file_computes_the_same_in_fewer_bytes(bits: int) -> None:
    network = quantized_network(bits)
    content = onnx_model(network, IMAGES[:1])
    nodes = layers_of_nodes(content, ("0", "3", "5", "8"))
    packed, stored = with_integer_weights(content, dict.fromkeys(nodes, float(bits)))
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


def test_weights_that_lie_on_no_grid_stay_as_they_are() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).eval()
    content = onnx_model(network, IMAGES[:1])
    nodes = layers_of_nodes(content, ("0",))
    assert with_integer_weights(content, dict.fromkeys(nodes, 4.0)) == (content, 0)
    assert with_integer_weights(content, dict.fromkeys(nodes, 16.0)) == (content, 0)
