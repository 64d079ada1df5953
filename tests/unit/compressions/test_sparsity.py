"""Sparsity on tiny layers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from senseapp.compressions import SparsityConfig
from senseapp.compressions.base import find_weights
from senseapp.compressions.sparsity.criteria import GRANULARITIES, gather_input_norms
from senseapp.compressions.sparsity.sparsity import Ranking
from senseapp.core.errors import InvalidDataset, MeasurementFailed
from tests.compressors import compressed_weight, compressor_of, profiles_of


def _layer(module: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return nn.Sequential(module).eval()


def _zeros(weight: torch.Tensor) -> torch.Tensor:
    return weight == 0


def test_what_was_done_is_reported():
    model = _layer(nn.Conv2d(4, 8, 3))
    compressor = compressor_of(model, SparsityConfig())
    with compressor.compress(compressor.targets[0], 0.3) as applied:
        assert int(_zeros(model[0].weight).sum()) == applied.removed_params == 86  # floor(0.3 · 288)
    assert applied.achieved_level == 86 / 288
    assert applied.removed_macs == 8600


def test_weights_that_were_zero_already_are_counted_as_zeros():
    model = _layer(nn.Linear(10, 10))
    model[0].weight.data[:5] = 0
    compressor = compressor_of(model, SparsityConfig())
    with compressor.compress(compressor.targets[0], 0.2) as applied:
        pass
    assert (applied.achieved_level, applied.removed_params) == (0.5, 50)


def test_kept_weights_keep_their_bits_also_when_not_finite():
    model = _layer(nn.Linear(4, 1))
    model[0].weight.data = torch.tensor([[float("inf"), 1.0, 0.5, float("nan")]])
    weight = compressed_weight(compressor_of(model, SparsityConfig()), model[0].weight, 0.5)
    assert torch.equal(weight.nan_to_num(7.0, posinf=8.0), torch.tensor([[8.0, 0.0, 0.0, 7.0]]))


def test_a_level_below_one_unit_fails_and_names_the_lowest_that_works():
    compressor = compressor_of(_layer(nn.Conv2d(4, 8, 3)), SparsityConfig(granularity="filter"))
    with (
        pytest.raises(MeasurementFailed, match=r"8 filters, and 10 % .* at least 12\.5 %"),
        compressor.compress(compressor.targets[0], 0.1),
    ):
        pass


@pytest.mark.parametrize("module", [nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Linear(6, 4)])
def test_two_of_four_is_not_applicable_to_indivisible_inputs(module):
    compressor = compressor_of(_layer(module), SparsityConfig(granularity="2:4"))
    assert not compressor.targets
    assert "divisible by four" in compressor.not_applicable["0"]


@pytest.mark.parametrize(
    ("module", "granularity"),
    [(nn.Conv2d(1, 8, 3), "channel"), (nn.Conv2d(8, 1, 3), "filter"), (nn.Linear(1, 1), "kernel")],
)
def test_a_single_unit_is_not_applicable(module, granularity):
    compressor = compressor_of(_layer(module), SparsityConfig(granularity=granularity))
    assert f"single {granularity}" in compressor.not_applicable["0"]


def test_random_depends_on_seed_and_layer_name_only():
    model = nn.ModuleDict({"a": nn.Linear(20, 20), "b": nn.Linear(20, 20)})
    config = SparsityConfig(criterion="random")

    def zeros(seed: int, name: str, target: int) -> torch.Tensor:
        return _zeros(
            compressed_weight(compressor_of(model, config, seed=seed), model[name].weight, 0.5, target=target)
        )

    assert torch.equal(zeros(0, "b", 1), zeros(0, "b", 1))
    assert not torch.equal(zeros(0, "b", 1), zeros(1, "b", 1))
    assert not torch.equal(zeros(0, "a", 0), zeros(0, "b", 1))
    alone = compressor_of(model, config, layers=profiles_of(model)[1:])
    assert torch.equal(zeros(0, "b", 1), _zeros(compressed_weight(alone, model["b"].weight, 0.5)))


def test_scores_that_are_not_numbers_go_last():
    ranking = Ranking(torch.tensor([[float("nan"), 1.0, float("inf"), 2.0]]))
    assert (~ranking.kept(3)).tolist() == [[True, True, False, True]]


def test_wanda_without_images_is_refused():
    with pytest.raises(InvalidDataset, match="calibration images"):
        compressor_of(_layer(nn.Linear(2, 2)), SparsityConfig(criterion="wanda"))


class _Attention(nn.Module):
    def __init__(self, **widths: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, **widths)
        self.widths = widths

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        narrow = tokens[..., : self.widths.get("kdim", 8)]
        return self.attn(value=narrow * 3, key=narrow * 2, query=tokens, need_weights=False)[0]


def test_wanda_reads_query_key_and_value_norms_of_attention_by_keyword():
    model, tokens = _Attention().eval(), torch.randn(2, 5, 8)
    compressor = compressor_of(model, SparsityConfig(criterion="wanda"), calibration=[tokens])
    assert [target.layer for target in compressor.targets] == ["attn"]
    assert "cannot be observed" in compressor.not_applicable["attn.out_proj"]
    found = find_weights(model, profiles_of(model))[0]["attn"]
    norms = gather_input_norms(model, [found], [tokens])["attn"].matched_to(found.layout, 24).squeeze()  # (24, 8)
    feature_norms = tokens.flatten(0, 1).norm(dim=0)
    assert torch.allclose(norms[[0, 7, 8, 23]], feature_norms * torch.tensor([[1.0], [1.0], [2.0], [3.0]]))


def _of_attention(profile):
    return replace(profile, name=f"attn.{profile.name}", parameter=f"attn.{profile.name}")


def test_separate_query_and_key_weights_use_their_own_input():
    model, tokens = _Attention(kdim=6, vdim=6).eval(), torch.randn(2, 5, 8)
    profiles = [
        profile
        for name in ("q_proj_weight", "k_proj_weight")
        for profile in profiles_of(nn.ModuleDict({name: nn.Linear(8 if name[0] == "q" else 6, 8)}))
    ]
    weights, _ = find_weights(model, [_of_attention(profile) for profile in profiles])
    norms = gather_input_norms(model, list(weights.values()), [tokens])
    assert {name: tuple(found.squared.shape) for name, found in norms.items()} == {
        "attn.q_proj_weight": (1, 8),
        "attn.k_proj_weight": (1, 6),
    }


@pytest.mark.parametrize("granularity", sorted(GRANULARITIES))
def test_either_order_in_memory_is_kept_and_gives_the_same_zeros(granularity):
    model, found = _layer(nn.Conv2d(8, 8, 3)), []
    for order in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=order)
        before = model[0].weight.stride()
        compressor = compressor_of(model, SparsityConfig(granularity=granularity))
        prepared = compressor.prepare(compressor.targets[0], 0.5)
        with torch.inference_mode(), prepared.active():
            assert torch.equal(model[0].weight, prepared.weight())
            assert model[0].weight.stride() == before
        assert not prepared.weight().is_inference()
        assert int((prepared.weight() == 0).sum()) == prepared.applied.removed_params
        found.append(prepared.weight())
    assert torch.equal(*found)
