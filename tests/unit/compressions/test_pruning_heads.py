"""Attention heads leave whole, and what stays computes what it did before."""

import pytest
import torch
from torch import nn

from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.core.errors import MeasurementFailed
from senseapp.networks.profile import profile_model
from tests.architectures import ARCHITECTURES, example_input
from tests.cases import first_of
from tests.pruning_models import pruning_of

ATTENTIONS = {
    "vit_tiny": "blocks.1.attn",
    "swin_tiny": "layers.2.blocks.1.attn",
    "mobilevit_xxs": "stages.3.1.transformer.1.attn",
}


def _pruner(name: str) -> tuple[nn.Module, torch.Tensor, PruningCompressor]:
    architecture = ARCHITECTURES[name]
    model, x = architecture.build(), example_input(architecture)
    return model, x, pruning_of(model, x)


@pytest.mark.parametrize(("name", "attention"), first_of(ATTENTIONS.items(), 2))
def test_a_removed_head_is_a_head_whose_output_is_ignored(name: str, attention: str) -> None:
    """Softmax works head by head, so removal must equal zero columns in ``proj``: a check that knows no graph."""
    model, x, compressor = _pruner(name)
    target = next(target for target in compressor.targets if target.layer == f"{attention}.qkv")
    module = model.get_submodule(attention)
    proj, heads = module.proj, module.num_heads
    level = 2 / heads if heads > 2 else 0.5
    weight = proj.weight.detach().clone()
    with torch.no_grad():
        with compressor.compress(target, level) as applied:
            kept = proj.weight.clone()
            pruned = model(x)
            assert module.num_heads == heads - round(level * heads)
        gone = [head for head, part in enumerate(weight.chunk(heads, 1)) if not _holds(kept, part)]
        assert len(gone) == round(level * heads)
        for head in gone:
            proj.weight.chunk(heads, 1)[head].zero_()
        torch.testing.assert_close(pruned, model(x), rtol=1e-4, atol=1e-5)
        proj.weight.copy_(weight)
        assert not torch.allclose(pruned, model(x), rtol=1e-4, atol=1e-5)
    assert applied.achieved_level == pytest.approx(level)
    assert module.num_heads == heads


def _holds(kept: torch.Tensor, part: torch.Tensor) -> bool:
    width = part.shape[1]
    return any(torch.equal(part, kept[:, start : start + width]) for start in range(0, kept.shape[1], width))


def test_the_level_of_attention_counts_heads() -> None:
    _, _, compressor = _pruner("vit_tiny")  # 3 heads
    target = next(target for target in compressor.targets if target.layer == "blocks.0.attn.qkv")
    assert set(target.modules) == {"blocks.0.attn", "blocks.0.attn.qkv", "blocks.0.attn.proj"}
    with pytest.raises(MeasurementFailed, match="only 3 heads"):
        compressor.compress(target, 0.3).__enter__()
    with compressor.compress(target, 0.5) as applied:
        assert applied.achieved_level == pytest.approx(1 / 3)
        assert applied.removed_params == 4 * 192 * 64  # query, key, value and projection of one head


@pytest.mark.parametrize("name", ["vit_tiny", "swin_tiny"])
def test_what_heads_multiply_with_each_other_goes_too(name: str) -> None:
    model, x, compressor = _pruner(name)
    target = next(target for target in compressor.targets if target.layer.endswith("attn.qkv"))
    before = profile_model(model, x).macs
    with compressor.compress(target, 0.67) as applied:
        assert profile_model(model, x).macs == before - applied.removed_macs
    coupled = next(each for each in compressor.couplings() if each.layer == target.layer)
    assert coupled.other_macs > 0


def test_attention_whose_code_fixes_its_width_is_not_applicable() -> None:
    _, _, compressor = _pruner("beit")
    assert {"blocks.0.attn.qkv", "blocks.1.attn.qkv"} <= set(compressor.not_applicable)
    assert all("attn" not in target.layer for target in compressor.targets)
