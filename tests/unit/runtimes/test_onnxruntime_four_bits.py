"""Linear layers in 4 bits: the same outputs in onnxruntime as of the rounded weights, in an eighth of their bytes."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions.base import WeightGrid
from senseapp.compressions.quantization.integers import IntegerWeight
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.four_bits import with_four_bits
from senseapp.runtimes.onnxruntime.int8 import layers_of_nodes
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from tests.cases import first_of

pytestmark = pytest.mark.slow  # exports a network for onnxruntime, which takes a second each time

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


GRID = WeightGrid(nearest=torch.round, largest=8)


class Mixed(nn.Module):
    """Products with a bias and without, of tokens and of rows, of no whole number of blocks; and a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.tokens = nn.Conv2d(3, 20, 2, stride=2), nn.Linear(20, 320)
        self.plain, self.head = nn.Linear(320, 40, bias=False), nn.Linear(40, 10)

    def forward(self, given: Tensor) -> Tensor:
        tokens = torch.relu(self.tokens(self.kernel(given).flatten(2).transpose(1, 2)))
        return self.head(torch.relu(self.plain(tokens.mean(1))))


def rounded(largest: int) -> nn.Module:
    """Return a network whose weights are up to ``largest`` steps, which some rows do not reach; one row is 0."""
    torch.manual_seed(largest)
    network = Mixed().eval()
    with torch.no_grad():
        network.scales = {}
        for name, module in network.named_children():
            steps = torch.randint(-largest, largest + 1, module.weight.shape).float()
            shape = (-1, *[1] * (steps.dim() - 1))
            network.scales[name] = 0.01 + torch.rand(len(steps))
            module.weight.copy_(steps * network.scales[name].view(shape))
        network.tokens.weight[3] = 0
    return network


def integers_by_node(content: bytes, network: nn.Module) -> dict[str, IntegerWeight]:
    """Return what each node's layer was made of, by the scales that are left in its rows."""
    found = {}
    for node, layer in layers_of_nodes(content, list(network.scales)).items():
        weight = network.get_submodule(layer).weight.detach()
        scale = network.scales[layer].view(-1, *[1] * (weight.dim() - 1))
        found[node] = IntegerWeight.of(weight, scale, GRID)
    return found


@pytest.mark.parametrize("largest", first_of([7, 1, 3]))
def test_a_file_in_four_bits_gives_what_the_rounded_network_gives(largest):
    network = rounded(largest)
    exported = onnx_model(network, IMAGES[:1])
    found, stored = with_four_bits(exported, integers_by_node(exported, network))
    assert len(stored) == 3
    onnx.checker.check_model(onnx.load_from_string(found))
    with torch.no_grad():
        expected = network(IMAGES)
    rounding_error = 2e-6 * float(expected.abs().max())
    torch.testing.assert_close(RuntimeModel(found).run(IMAGES), expected, rtol=1e-4, atol=rounding_error)
    linear = 4 * sum(module.weight.numel() for module in network.modules() if isinstance(module, nn.Linear))
    assert len(exported) - len(found) > 0.7 * linear


def test_what_has_more_steps_or_is_not_asked_for_stays():
    network = rounded(8)
    exported = onnx_model(network, IMAGES[:1])
    assert with_four_bits(exported, integers_by_node(exported, network)) == (exported, [])
    network = rounded(7)
    exported = onnx_model(network, IMAGES[:1])
    assert with_four_bits(exported, {}) == (exported, [])
    one = next(node.name for node in onnx.load_from_string(exported).graph.node if node.op_type in ("Gemm", "MatMul"))
    integers = integers_by_node(exported, network)
    assert with_four_bits(exported, {one: integers[one]})[1] == [one]
    others = {one: replace(integers[one], values=integers[one].values.flip(0))}
    assert with_four_bits(exported, others) == (exported, [])  # integers that the weight is not made of
