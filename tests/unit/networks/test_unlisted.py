"""Weights that no layer holds are listed, and nothing else is."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from senseapp.networks.profile import profile_model
from senseapp.records.profile import counting_notes, standardised_note, unlisted_note
from tests.trap_models import PIXELS, WIDTH, Attention, CrossAttention, TiedWeights


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
    assert "attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight." in unlisted_note(profile)
    assert "3 weights (" in unlisted_note(profile)


def test_recurrent_layers_and_embeddings_but_no_norm_token_or_parametrization() -> None:
    profile = profile_model(_Recurrent().eval(), torch.randn(1, 3, PIXELS, PIXELS))
    found = {item.module: item.parameters for item in profile.unlisted}
    assert found.keys() == {"rows", "places"}
    assert found["rows"] == ("weight_ih_l0", "weight_hh_l0")
    recurrent = next(item for item in profile.unlisted if item.module == "rows")
    assert recurrent.macs == PIXELS * (4 * 8 * 16 + 4 * 8 * 8)
    assert [layer.name for layer in profile.layers] == ["conv", "head"]


def test_networks_of_layers_have_none() -> None:
    for model in (Attention(), TiedWeights()):
        profile = profile_model(model.eval(), torch.randn(1, 3, PIXELS, PIXELS))
        assert profile.unlisted == ()
    resnet = profile_model(timm.create_model("resnet18").eval(), torch.randn(1, 3, 64, 64))
    assert resnet.unlisted == ()
    assert counting_notes(resnet, "sparsity") == ()


def test_standardised_weights_are_said_where_zeros_are_meant() -> None:
    profile = profile_model(timm.create_model("nf_resnet26", num_classes=10).eval(), torch.randn(1, 3, 64, 64))
    note = standardised_note(profile)
    assert note.startswith("The weights of 29 layers are standardised at each call (stem.conv, ")
    assert counting_notes(profile, "sparsity") == (note,)
    assert counting_notes(profile, "pruning") == ()
