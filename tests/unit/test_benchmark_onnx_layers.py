"""What a level does to a layer of an ONNX file is what it does to that layer of the module it was exported from."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from benchmarks.onnx_folded import folded, train_norms
from benchmarks.onnx_in import exported as folding_export
from benchmarks.onnx_layers import LEVELS, apart, measured, same_layers, unequal
from senseapp.networks.onnx.open import open_onnx
from tests.onnx_files import exported

SIDE = 16


class _Network(nn.Module):
    """A strided and a depthwise convolution with trained norms, a skip, a gate, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.gate = nn.Conv2d(8, 8, 1)
        self.hidden = nn.Linear(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.norm(self.depthwise(x))
        x = x * self.gate(x.mean((2, 3), keepdim=True)).sigmoid()
        return self.head(torch.relu(self.hidden(x.mean((2, 3)))))


@pytest.fixture(scope="module")
def networks() -> tuple[nn.Module, nn.Module]:
    """Return a module, and what is read from its export."""
    torch.manual_seed(0)
    module = _Network().eval()
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.weight.data.uniform_(0.5, 1.5)
            each.running_var.uniform_(0.5, 2)
    module.head.weight.data *= 10
    return module, open_onnx(exported(module, side=SIDE)).network


IMAGES = torch.randn(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_a_layer_of_the_file_loses_what_that_of_the_module_loses(
    kind: str, precision: torch.dtype, networks: tuple[nn.Module, nn.Module]
) -> None:
    module, network = (each.to(precision) for each in networks)
    layers = same_layers(module, network)
    assert layers == {name: name for name in ("stem.0", "depthwise", "gate", "hidden", "head")}
    ours, theirs = measured(module, IMAGES, kind), measured(network, IMAGES, kind)
    assert unequal(ours, theirs, layers) == []
    differences = list(apart(ours, theirs, layers))
    assert len({(layer, level) for _, layer, level, _ in differences}) >= 2 * (2 if kind == "pruning" else 5)
    assert max(differences)[0] <= 1e-4, max(differences)


def test_another_weight_is_another_layer_with_other_figures(networks: tuple[nn.Module, nn.Module]) -> None:
    module, network = networks
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.get_submodule("hidden").weight[0] += 0.1
    layers = same_layers(module, other)
    assert set(layers) == {"stem.0", "depthwise", "gate", "head"}
    ours, theirs = measured(module, IMAGES, "sparsity"), measured(other, IMAGES, "sparsity")
    assert unequal(ours, theirs, layers) == ["hidden"]
    assert max(apart(ours, theirs, layers))[0] > 1e-2


def test_a_file_with_folded_norms_is_the_module_with_norms_folded_alike() -> None:
    torch.manual_seed(0)
    module = _Network().eval()
    train_norms(module, IMAGES)
    network = open_onnx(folding_export(module, SIDE, dynamo=False, free=True)).network
    layers = same_layers(module, network)
    stored = {name: network.get_submodule(found).weight.detach() for name, found in layers.items()}
    assert not torch.equal(stored["stem.0"], module.stem[0].weight)
    alike, equal = folded(module, IMAGES, stored)
    assert equal == len(layers) == 5
    torch.testing.assert_close(alike(IMAGES), module(IMAGES))
    figures = [measured(each.double(), IMAGES, "sparsity") for each in (module, alike, network)]
    assert max(apart(figures[1], figures[2], layers))[0] <= 1e-9
    assert max(apart(figures[0], figures[2], layers))[0] > 1e-2
