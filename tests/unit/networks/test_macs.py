"""Multiply-accumulates against torch's own counter, and whose they are when a weight is computed before use."""

from dataclasses import replace

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import ScaledStdConv2d, StdConv2d
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.real.macs import compare_macs
from scripts.build_catalogue import build_on_meta, count_macs
from senseapp.networks.profile import acting_zero_share, profile_model
from senseapp.networks.sources.catalogue import find_entry
from senseapp.records.profile import counting_notes, standardised_note
from senseapp.records.schedule import ResourceBudget
from senseapp.solve.curves import Accounting
from tests.cases import first_of
from tests.trap_models import PIXELS, WIDTH, Attention, CrossAttention, EncoderLayer

_COUNTED = (
    "timm/mobilenetv3_small_100", "timm/vit_tiny_patch16_224", "timm/halonet26t", "timm/nf_resnet50",
    "timm/convnext_atto", "timm/mixer_s16_224", "timm/lambda_resnet26t", "timm/botnet26t_256",
)  # fmt: skip
"""The ways in which products are computed."""


class _Classifier(nn.Module):
    """One module, averaged to class scores."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean((2, 3))


class _Computed(nn.Module):
    """Convolutions with weights that no module call multiplies: joined from two, and standardised by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(3, 2, 3, bias=False)
        self.bare = nn.Parameter(torch.randn(5, 6, 1, 1))
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        both = F.conv2d(x, torch.cat([self.left.weight, self.right.weight]))
        weight = self.bare - self.bare.mean((1, 2, 3), keepdim=True)
        return F.conv2d(both, weight).mean((2, 3)) * self.scale


@pytest.mark.architectures
@pytest.mark.parametrize("title", first_of(_COUNTED, 3))
def test_layers_and_whole_equal_the_counter_of_torch(title: str) -> None:
    library, _, name = title.partition("/")
    entry = find_entry(library, name)
    assert entry is not None
    found = compare_macs(title, build_on_meta(library, name), entry.input_shape)
    assert set(found.ratios) == {1.0}
    assert len(found.layers) >= 10
    assert found.whole[0] == entry.macs


@pytest.mark.parametrize("make", [Attention, EncoderLayer])
def test_the_fused_kernels_of_attention_count_as_its_parts(make: type[nn.Module]) -> None:
    model, image = make().eval(), torch.randn(1, 3, PIXELS, PIXELS)
    fused = profile_model(model, image)
    assert fused.macs == count_macs(model.to("meta"), (3, PIXELS, PIXELS))
    assert fused.macs > fused.layer_macs


@pytest.mark.parametrize("make", [ScaledStdConv2d, StdConv2d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_standardised_convolution_counts_as_any_other(make: type[nn.Conv2d], groups: int) -> None:
    image = torch.randn(2, 4, 9, 9)
    plain = profile_model(_Classifier(nn.Conv2d(4, 6, 3, padding=1, groups=groups)), image).layers[0]
    found = profile_model(_Classifier(make(4, 6, 3, padding=1, groups=groups)), image).layers[0]
    assert found.macs == plain.macs > 0
    assert plain.keeps_zeros
    assert not found.keeps_zeros


@pytest.mark.parametrize("normed", [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.weight_norm])
def test_a_parametrized_convolution_counts_as_any_other(normed: object) -> None:
    layer = normed(nn.Conv2d(3, 4, 3))  # type: ignore[operator]
    (found,) = profile_model(_Classifier(layer).eval(), torch.randn(2, 3, 8, 8)).layers
    assert found.macs == 36 * 4 * 27


def test_macs_of_a_computed_weight_belong_to_what_it_came_from() -> None:
    model, image = _Computed().eval(), torch.randn(1, 3, 10, 10)
    profile = profile_model(model, image)
    assert {layer.name: layer.macs for layer in profile.layers} == {"left": 64 * 4 * 27, "right": 64 * 2 * 27}
    assert [(item.module, item.parameters, item.macs) for item in profile.unlisted] == [
        ("", ("bare", "scale"), 64 * 30)
    ]
    with FlopCounterMode(display=False) as counter:
        model(image)
    assert profile.macs == counter.get_total_flops() // 2 == profile.layer_macs + 64 * 30


def test_zeros_of_a_standardised_weight_act_only_as_whole_filters() -> None:
    model, image = _Classifier(ScaledStdConv2d(4, 6, 3)).eval(), torch.randn(1, 4, 8, 8)
    (layer,) = profile_model(model, image).layers
    weight = model.get_parameter("layer.weight")
    with torch.no_grad():
        weight[:, :, 0] = 0
        assert acting_zero_share(model, layer) == 0
        weight[:2] = 0
        assert acting_zero_share(model, layer) == pytest.approx(1 / 3)
    assert (weight == 0).float().mean() > 1 / 3  # the parameter has more zeros than what is multiplied


def test_a_budget_of_macs_is_a_share_of_the_whole_network() -> None:
    profile = profile_model(_Classifier(ScaledStdConv2d(4, 6, 3)).eval(), torch.randn(1, 4, 8, 8))
    whole = Accounting.of(replace(profile, macs=2 * profile.layer_macs), ())
    assert whole.figure("macs", profile.layer_macs) == 0.5
    assert whole.required(ResourceBudget(kind="macs", target=0.25)) == 0.5 * profile.layer_macs


# ---- weights that no layer holds are listed, and nothing else is


class _Recurrent(nn.Module):
    """An LSTM over rows and an embedding beside layers, norms and small vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv2d(3, 16, 3, padding=1))
        self.norm = nn.BatchNorm2d(16)
        self.rows = nn.LSTM(16, 8, batch_first=True)
        self.places = nn.Embedding(PIXELS, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.conv(x)).mean(3).transpose(1, 2)  # (N, H, 16)
        rows = rows + self.places(torch.arange(PIXELS)) + self.token
        return self.head(self.rows(rows)[0][:, -1])


def test_attention_with_inputs_of_several_widths() -> None:
    profile = profile_model(CrossAttention().eval(), torch.randn(1, 3, PIXELS, PIXELS))
    (found,) = profile.unlisted
    assert (found.module, found.module_type) == ("attention", "MultiheadAttention")
    assert found.parameters == ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    assert found.macs == PIXELS * PIXELS * 4 * WIDTH * WIDTH
    (note,) = counting_notes(profile, "pruning")
    assert "attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight." in note
    assert "3 weights (" in note


def test_recurrent_layers_and_embeddings_but_no_norm_token_or_parametrization() -> None:
    profile = profile_model(_Recurrent().eval(), torch.randn(1, 3, PIXELS, PIXELS))
    found = {item.module: item.parameters for item in profile.unlisted}
    assert found.keys() == {"rows", "places"}
    assert found["rows"] == ("weight_ih_l0", "weight_hh_l0")
    recurrent = next(item for item in profile.unlisted if item.module == "rows")
    assert recurrent.macs == PIXELS * (4 * 8 * 16 + 4 * 8 * 8)
    assert [layer.name for layer in profile.layers] == ["conv", "head"]


def test_standardised_weights_are_said_where_zeros_are_meant() -> None:
    profile = profile_model(timm.create_model("nf_resnet26", num_classes=10).eval(), torch.randn(1, 3, 64, 64))
    note = standardised_note(profile)
    assert note.startswith("The weights of 29 layers are standardised at each call (stem.conv, ")
    assert counting_notes(profile, "sparsity") == (note,)
    assert counting_notes(profile, "pruning") == ()
