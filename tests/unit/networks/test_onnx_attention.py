"""Attention that a file writes as matrix products keeps its heads; all other channels go as in the module."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import Applied, CompressionRequest, build_compressor
from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.networks.onnx.modules import layers_of_products
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.write import with_weights
from senseapp.networks.profile import profile_model
from tests.onnx_files import exported, newly_exported
from tests.onnx_graphs import by_onnxruntime

SIDE, WIDTH, HEADS = 16, 24, 3
IMAGES = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def vit() -> nn.Module:
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=SIDE, patch_size=4, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=5, mlp_ratio=2
    )
    return network.eval()


class Attention(nn.Module):
    """Attention with queries, keys and values of one layer, or of three, on patches of images; and a classifier."""

    def __init__(self, *, packed: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH) if packed else None
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        made = [self.query(x), self.key(x), self.value(x)] if self.qkv is None else self.qkv(x).chunk(3, -1)
        n, tokens, _ = x.shape
        query, key, value = (each.view(n, tokens, HEADS, -1).transpose(1, 2) for each in made)
        scores = (query @ key.transpose(-2, -1) * WIDTH**-0.5).softmax(-1)
        x = x + self.proj((scores @ value).transpose(1, 2).flatten(2))
        return self.head((x + self.down(F.gelu(self.up(x)))).mean(1))


def compressor_of(network: nn.Module) -> PruningCompressor:
    network = copy.deepcopy(network).eval().requires_grad_(False)
    layers = profile_model(network, IMAGES[:1]).layers
    request = CompressionRequest(model=network, layers=layers, calibration=[IMAGES[:1]], seed=0)
    made = build_compressor(PruningConfig(), request)
    assert isinstance(made, PruningCompressor)
    return made


def effects(compressor: PruningCompressor, *levels: float) -> dict[tuple[str, float], tuple[Applied, Tensor]]:
    """Return what each level removes from each group, and the scores without it."""
    found = {}
    for target in compressor.targets:
        for level in levels:
            with torch.no_grad(), compressor.compress(target, level) as applied:
                found[target.layer, level] = applied, compressor._model(IMAGES)
    return found


@pytest.mark.parametrize("export", [
    pytest.param(lambda module: exported(module, side=SIDE), id="older"),
    pytest.param(lambda module: newly_exported(module, side=SIDE, free=True), id="newer", marks=pytest.mark.wide),
])  # fmt: skip
def test_a_transformer_has_the_groups_of_its_module_but_for_heads(export: Callable[[nn.Module], bytes]) -> None:
    module = vit()
    opened = open_onnx(export(module))
    own, built = compressor_of(module), compressor_of(opened.network)
    assert [(each.layer, each.members) for each in built.targets] == [
        (each.layer, each.members) for each in own.targets if "qkv" not in each.layer
    ]
    assert [each.layer for each in built.targets] == ["patch_embed.proj", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1"]
    assert "heads are not pruned in ONNX files" in built.not_applicable["blocks.0.attn.qkv"]
    before = built._model(IMAGES)
    expected, found = effects(own, 0.34, 0.67), effects(built, 0.34, 0.67)
    for key, (applied, scores) in found.items():
        assert expected[key][0] == applied
        torch.testing.assert_close(expected[key][1], scores, atol=1e-5, rtol=0)
    assert torch.equal(built._model(IMAGES), before)  # all is as before

    ratios = {target.layer: 0.34 for target in built.targets}
    assert built.prune(ratios) == own.prune(ratios)
    edited = with_weights(opened, built._model)
    assert len(edited.content) < len(opened.content)
    assert edited.difference.otherwise_identical
    for number in (1, 2, 3):
        expected_scores = own._model(IMAGES[:number])
        np.testing.assert_allclose(by_onnxruntime(edited.content, IMAGES[:number])[0], expected_scores, atol=1e-5)
    onnx.checker.check_model(onnx.load_from_string(edited.content), full_check=True)


@pytest.mark.parametrize(
    ("packed", "layers"), [(True, {"qkv"}), (False, {"query", "key", "value"})], ids=["one layer", "three layers"]
)
def test_layers_of_attention_keep_their_channels_and_say_so(packed: bool, layers: set[str]) -> None:
    torch.manual_seed(0)
    compressor = compressor_of(open_onnx(exported(Attention(packed=packed).eval(), side=SIDE)).network)
    assert [target.layer for target in compressor.targets] == ["patches", "up"]
    reasons = {name for name, why in compressor.not_applicable.items() if "heads are not pruned in ONNX files" in why}
    assert reasons == layers


def test_a_module_has_no_attention_of_a_graph() -> None:
    assert layers_of_products(vit()) == {}
