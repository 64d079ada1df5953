"""A network's layers, counted: multiply-accumulates against closed forms, order, and what never runs."""

import pytest
import torch
from torch import Tensor, nn

from senseapp.core.errors import NoLayersSelected, UnsupportedModel
from senseapp.networks.profile import compressible_weights, profile_model
from senseapp.records.profile import select_layers
from senseapp.tasks import CLASSIFICATION
from tests.small_models import NUM_CLASSES, chain, small_network
from tests.trap_models import PIXELS, Attention, EncoderLayer, FunctionalUse, NeverRuns, TiedWeights

BATCH = 3


class _One(nn.Module):
    """One layer, and a mean that makes two class scores of what it returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten(1).mean(1, keepdim=True).expand(-1, 2)


def _conv_macs(layer: nn.modules.conv._ConvNd, outputs: tuple[int, ...]) -> int:
    kernel = 1
    for side in layer.kernel_size:
        kernel *= side
    positions = 1
    for side in outputs:
        positions *= side
    return positions * layer.out_channels * (layer.in_channels // layer.groups) * kernel


@pytest.mark.parametrize(
    ("layer", "outputs"),
    [
        (nn.Conv2d(4, 6, 3), (10, 8)),
        (nn.Conv2d(4, 6, 3, padding=1), (12, 10)),
        (nn.Conv2d(4, 6, (1, 5), stride=2, padding=(0, 2)), (6, 5)),
        (nn.Conv2d(4, 8, 3, groups=2), (10, 8)),
        (nn.Conv2d(4, 4, 3, groups=4), (10, 8)),
        (nn.Conv2d(4, 6, 3, dilation=2), (8, 6)),
        (nn.Conv2d(4, 4, 1, bias=False), (12, 10)),
    ],
)
def test_convolutions(layer: nn.Conv2d, outputs: tuple[int, int]) -> None:
    profile = profile_model(_One(layer), torch.randn(BATCH, 4, 12, 10))
    assert profile.layers[0].macs == _conv_macs(layer, outputs)
    assert profile.layers[0].input_shape == (4, 12, 10)
    assert profile.layers[0].output_shape == (layer.out_channels, *outputs)
    assert profile.layers[0].channel_axis == 0


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_multiply_once_per_input_position(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups)
    (found,) = profile_model(_One(layer), torch.randn(BATCH, 4, 5, 7)).layers
    assert found.macs == 5 * 7 * 4 * (6 // groups) * 9
    assert found.channel_axis == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("features", "outputs"), [(6, 10), (6, 6), (10, 6)])
def test_linear_on_tokens(features: int, outputs: int, bias: bool) -> None:
    profile = profile_model(_One(nn.Linear(features, outputs, bias=bias)), torch.randn(BATCH, 5, 7, features))
    assert profile.layers[0].macs == 5 * 7 * features * outputs


@pytest.mark.parametrize("make", [Attention, EncoderLayer])
def test_attention_counts_its_projections(make: type[nn.Module]) -> None:
    profile = profile_model(make().eval(), torch.randn(1, 3, PIXELS, PIXELS))
    tokens = PIXELS * PIXELS
    expected = {"self_attn": 3 * 36, "attention": 3 * 36, "out_proj": 36, "linear1": 72, "linear2": 72}
    found = {layer.name.rpartition(".")[2]: layer for layer in profile.layers}
    for name in expected.keys() & found.keys():
        assert found[name].macs == tokens * expected[name], name
        assert found[name].runs
    assert len(expected.keys() & found.keys()) >= 2


def test_a_weight_used_by_functional_code_runs_and_counts() -> None:
    profile = profile_model(FunctionalUse().eval(), torch.randn(1, 3, PIXELS, PIXELS))
    assert [layer.name for layer in profile.layers] == ["stem", "first", "second", "head"]
    assert profile.layer("first").macs == profile.layer("second").macs == PIXELS * PIXELS * 6 * 6 * 9
    assert profile.layer("first").runs


def test_layers_come_in_execution_order_and_idle_ones_last() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)
            self.head = nn.Linear(4, 2)
            self.stem = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x).mean((2, 3)))

    layers = profile_model(Backwards(), torch.randn(1, 3, 4, 4)).layers
    assert [layer.name for layer in layers] == ["stem", "head", "idle"]
    assert [layer.order for layer in layers] == [0, 1, 2]
    assert [layer.runs for layer in layers] == [True, True, False]
    assert layers[2].macs == 0
    assert layers[2].input_shape == ()


def test_tied_weights_count_once() -> None:
    model = TiedWeights().eval()
    profile = profile_model(model, torch.randn(1, 3, PIXELS, PIXELS))
    each = PIXELS * PIXELS * 6 * 6 * 9
    assert profile.layer("first").macs == 2 * each
    assert profile.layer("second").macs == 0
    assert profile.num_params == sum(parameter.numel() for parameter in model.parameters())


def test_weights_in_one_storage_are_told_apart() -> None:
    model, images = chain(3), torch.randn(2, 3, 8, 8)
    apart = profile_model(model, images)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    assert len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) == 1
    at_once = profile_model(model, images)
    assert [layer.macs for layer in at_once.layers] == [layer.macs for layer in apart.layers]
    assert at_once.macs > 0


def test_sizes_of_the_whole_network() -> None:
    model = small_network()
    profile = profile_model(
        model, torch.randn(2, 3, 8, 8), task=CLASSIFICATION, title="small", pretrained=False, notes=("tiny",)
    )
    assert profile.num_params == sum(parameter.numel() for parameter in model.parameters())
    assert profile.macs == sum(layer.macs for layer in profile.layers)
    assert profile.num_bytes == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert (profile.title, profile.pretrained, profile.notes) == ("small", False, ("tiny",))
    assert (profile.input_shape, profile.num_classes) == ((3, 8, 8), NUM_CLASSES)


def test_forwards_are_put_back_also_after_an_error() -> None:
    model = chain()
    with pytest.raises(UnsupportedModel, match="cannot take an image of shape"):
        profile_model(model, torch.randn(1, 5, 8, 8))
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_selection_by_pattern_and_type() -> None:
    profile = profile_model(small_network(), torch.randn(1, 3, 8, 8))

    def names(*patterns: str, types: tuple[str, ...] = ()) -> list[str]:
        return [layer.name for layer in select_layers(profile, patterns, types)]

    assert len(names()) == len(profile.layers) == 6
    assert names("blocks.0.*") == ["blocks.0.conv1", "blocks.0.conv2"]
    assert names("*conv1", "head") == ["blocks.0.conv1", "blocks.1.conv1", "head"]
    assert names(types=("Linear",)) == ["head"]
    assert names("stem") == ["stem"]


def test_selection_says_what_there_would_have_been() -> None:
    profile = profile_model(small_network(), torch.randn(1, 3, 8, 8))
    with pytest.raises(NoLayersSelected, match=r"No layer matches nope\. Layers here are called stem"):
        select_layers(profile, ("nope",))
    with pytest.raises(NoLayersSelected, match="The types here are Linear"):
        select_layers(profile, ("head",), ("Conv2d",))
    bare = profile_model(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(1, 3, 8, 8))
    with pytest.raises(NoLayersSelected, match="no compressible layers"):
        select_layers(bare)


def test_what_counts_as_compressible() -> None:
    model = NeverRuns()
    assert [name for name, _, _ in compressible_weights(model)] == ["stem", "first", "second", "head", "spare"]
    assert {name: attribute for name, _, attribute in compressible_weights(Attention())} == {
        "stem": "weight",
        "first": "weight",
        "second": "weight",
        "head": "weight",
        "attention": "in_proj_weight",
        "attention.out_proj": "weight",
    }
