"""A network whose weights are no numbers is refused before anything runs, with the name of the layer."""

import pytest
import torch
from torch import nn

from senseapp import SensitivityAnalyzer
from senseapp.compressions import SparsityConfig
from senseapp.core.errors import UnsupportedModel
from senseapp.measure.sweep import Sweep
from senseapp.networks.profile import profile_model
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_evaluator import evaluator_of
from tests.small_models import images_for, small_network

NAN, INF = float("nan"), float("inf")


def broken(name: str, value: float) -> nn.Module:
    """Return a network one number of which, of the parameter or buffer called ``name``, is ``value``."""
    network = small_network()
    dict([*network.named_parameters(), *network.named_buffers()])[name].data.view(-1)[1] = value
    return network


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "blocks.0.conv1.weight",
            NAN,
            r"The layer blocks\.0\.conv1 \(Conv2d\) holds NaN or infinite values \(weight\)",
        ),
        ("head.bias", -INF, r"The layer head \(Linear\) holds NaN or infinite values \(bias\)"),
        (
            "blocks.1.norm1.running_mean",
            NAN,
            r"The layer blocks\.1\.norm1 \(BatchNorm2d\) holds NaN or infinite values",
        ),
        (
            "blocks.1.norm1.running_var",
            -0.5,
            r"blocks\.1\.norm1 .* a variance that is not above zero \(running_var, -0\.5",
        ),
    ],
)
def test_the_layer_is_named_by_each_way_to_a_measurement(name: str, value: float, said: str) -> None:
    network = broken(name, value)
    with pytest.raises(UnsupportedModel, match=said):
        profile_model(network, torch.zeros(1, 3, 8, 8))  # what a page shows of a model
    with pytest.raises(UnsupportedModel, match=said):
        Sweep.open(network, images_for(4), SensitivitySpec(), task=CLASSIFICATION)
    with pytest.raises(UnsupportedModel, match=said):
        evaluator_of(network, SparsityConfig())
    with pytest.raises(UnsupportedModel, match=said):
        SensitivityAnalyzer(network, images_for(4).images, lambda _model: 0.0).analyze(verbose=False)


def test_several_layers_are_counted() -> None:
    network = broken("stem.weight", NAN)
    network.head.weight.data[0, 0] = NAN
    network.blocks[0].norm1.running_var.fill_(-1)
    with pytest.raises(UnsupportedModel, match=r"The layer stem .* So do 2 more\."):
        profile_model(network, torch.zeros(1, 3, 8, 8))


class WithUnused(nn.Module):
    """Holds a layer that no pass calls, and a mask of infinities that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.unused = small_network(), nn.Linear(3, 3)
        self.register_buffer("mask", torch.full((6,), -INF))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.maximum(self.inside(given), self.mask)


@pytest.mark.parametrize("value", [NAN, -INF])
def test_weights_that_nothing_reads_are_no_obstacle(value: float) -> None:
    network = WithUnused()
    network.unused.weight.data.fill_(value)
    assert len(profile_model(network, torch.zeros(1, 3, 8, 8)).layers) == 7


@pytest.mark.parametrize("variance", [0.0, -1e-6])
def test_a_variance_that_its_eps_makes_positive_is_none(variance: float) -> None:
    assert profile_model(broken("blocks.0.norm1.running_var", variance), torch.zeros(1, 3, 8, 8)).layers


def test_outputs_that_are_no_numbers_without_such_a_weight_are_not_blamed_on_one() -> None:
    network = small_network()
    network.head.bias.data.fill_(3e38)
    network.head.weight.data.fill_(3e38)
    assert profile_model(network, 1e9 * torch.ones(1, 3, 8, 8)).layers
