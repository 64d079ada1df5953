"""ShuffleNet, on which torch-pruning divides by zero: what lies between two shuffles can go, the rest says why not."""

import copy

import pytest
import torch
import torchvision
from torch import nn

from senseapp.compressions.pruning.pruning import PruningCompressor
from tests.pruning_models import footprint, pruning_of


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    network = torchvision.models.shufflenet_v2_x0_5(num_classes=10).eval()
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.weight, 1.0, 3.0)
        nn.init.normal_(norm.bias, std=0.2)
    return network


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def compressor(model: nn.Module, images: torch.Tensor) -> PruningCompressor:
    return pruning_of(model, images)


@pytest.mark.slow
def test_each_group_is_one_whose_channels_its_readers_multiply_by_zero(model, images, compressor) -> None:
    before = footprint(model)
    with torch.no_grad():
        dense = model(images)
        for target in compressor.targets:
            masked = copy.deepcopy(model)
            _, read = compressor.removed_inputs(target, 0.5)
            for reader, positions in read.items():
                masked.get_submodule(reader).weight[:, positions] = 0
            wanted = masked(images)
            with compressor.compress(target, 0.5):
                torch.testing.assert_close(model(images), wanted, rtol=1e-5, atol=1e-6, msg=str(target.members))
            assert not torch.equal(wanted, dense)
    assert footprint(model) == before


def test_most_weights_can_go_and_the_others_say_why(model: nn.Module, compressor: PruningCompressor) -> None:
    members = {member for target in compressor.targets for member in target.members}
    assert len(compressor.targets) == 18
    weights = sum(model.get_parameter(f"{name}.weight").numel() for name in members)
    assert weights > 0.7 * sum(parameter.numel() for parameter in model.parameters())
    assert "stage2.1.branch2.5" in compressor.not_applicable
    assert all(reason.endswith(".") and "division" not in reason for reason in compressor.not_applicable.values())
