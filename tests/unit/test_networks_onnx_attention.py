"""Heads of attention that a file writes as matrix products: found, removed, and refused by name where not known."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import Applied, CompressionRequest, build_compressor
from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.networks.onnx.attention import attention_in
from senseapp.networks.onnx.edit import with_weights
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.profile import profile_model
from senseapp.networks.trace import CallTrace
from tests.onnx_files import exported

SIDE, WIDTH, HEADS = 16, 24, 3
IMAGES = torch.rand(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def vit() -> nn.Module:
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=SIDE, patch_size=4, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=5, mlp_ratio=2
    )
    return network.eval()


class Attention(nn.Module):
    """Queries, keys and values of ``style``: packed by head, from three layers, or with heads in the batch."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.shared_key, self.shared_value = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(1, HEADS, 16, 16))
        self.table = nn.Parameter(torch.randn(31, HEADS))
        self.register_buffer("places", torch.arange(16)[:, None] - torch.arange(16) + 15)
        self.mixing = nn.Conv2d(HEADS, HEADS, 1)
        self.norm = nn.LayerNorm(WIDTH)
        self.head_norm = nn.LayerNorm(WIDTH // HEADS)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        n, tokens, _ = x.shape
        if self.style == "packed by head":
            return self.qkv(x).view(n, tokens, HEADS, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
        if self.style == "split":
            return tuple(each.view(n, tokens, HEADS, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if self.style == "shared keys":
            parts = (self.query(x).view(n, tokens, HEADS, -1).transpose(1, 2), self.shared_key(x)[:, None])
            return (*parts, self.shared_value(x)[:, None])
        parts = tuple(layer(x).view(n, tokens, HEADS, -1) for layer in (self.query, self.key, self.value))
        if self.style == "norm of each head":
            parts = (self.head_norm(parts[0]), *parts[1:])
        parts = tuple(each.transpose(1, 2) for each in parts)
        if self.style == "in the batch":
            parts = tuple(each.reshape(-1, tokens, WIDTH // HEADS) for each in parts)
        return parts

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._parts(x)
        scores = query @ key.transpose(-2, -1) * WIDTH**-0.5
        if self.style == "bias of each head":
            scores = scores + self.bias
        if self.style == "table of places":
            scores = scores + self.table[self.places.view(-1)].view(16, 16, -1).permute(2, 0, 1)[None]
        if self.style == "mixed heads":
            scores = self.mixing(scores)
        scores = scores.sigmoid() if self.style == "no softmax" else scores.softmax(-1)
        made = (scores @ value).view(-1, HEADS, x.shape[1], WIDTH // HEADS).transpose(1, 2).flatten(2)
        return self.proj(self.norm(made) if self.style == "norm of all heads" else made)


class Network(nn.Module):
    """Patches, one block with attention of a style, and a classifier."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.norm = nn.LayerNorm(WIDTH)
        self.attn = Attention(style)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.attn(self.norm(x))
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x.mean(1))


KNOWN = {
    "packed by head": ("attn.qkv",),
    "split": ("attn.qkv",),
    "three layers": ("attn.query", "attn.key", "attn.value"),
    "in the batch": ("attn.query", "attn.key", "attn.value"),
    "table of places": ("attn.query", "attn.key", "attn.value"),
    "bias of each head": ("attn.query", "attn.key", "attn.value"),
    "norm of each head": ("attn.query", "attn.key", "attn.value"),
}
REFUSED = {
    "shared keys": "it has a single head, or heads share keys",
    "mixed heads": "which of its channels are a head is not known",
    "no softmax": "which of its channels are a head is not known",
    "norm of all heads": "“attn.norm” computes with several heads at once",
}


def styled(style: str) -> tuple[nn.Module, OpenedOnnx]:
    torch.manual_seed(0)
    module = Network(style).eval()
    return module, open_onnx(exported(module, side=SIDE))


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


def run(content: bytes, images: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]


def newly_exported(module: nn.Module) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = {"x": {0: torch.export.Dim("batch")}}
        torch.onnx.export(module, (IMAGES[:2],), dynamo=True, verbose=False, dynamic_shapes=batch).save(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("export", [
    pytest.param(lambda module: exported(module, side=SIDE), id="older exporter"),
    pytest.param(newly_exported, id="newer exporter", marks=pytest.mark.wide),
])  # fmt: skip
def test_a_transformer_has_the_groups_of_its_module(export: Callable[[nn.Module], bytes]) -> None:
    module = vit()
    opened = open_onnx(export(module))
    own, built = compressor_of(module), compressor_of(opened.network)
    assert [(each.layer, each.members) for each in built.targets] == [
        (each.layer, each.members) for each in own.targets
    ]
    assert [each.layer for each in own.targets] == [
        *("patch_embed.proj", "blocks.0.attn.qkv", "blocks.0.mlp.fc1", "blocks.1.attn.qkv", "blocks.1.mlp.fc1")
    ]
    before = built._model(IMAGES)
    expected, found = effects(own, 0.34, 0.67), effects(built, 0.34, 0.67)
    assert expected.keys() == found.keys()
    for key, (applied, scores) in expected.items():
        assert found[key][0] == applied
        torch.testing.assert_close(found[key][1], scores, atol=1e-5, rtol=0)
    assert torch.equal(built._model(IMAGES), before)  # all is as before

    ratios = {target.layer: 0.34 for target in own.targets}
    assert built.prune(ratios) == own.prune(ratios)
    edited = with_weights(opened, built._model)
    assert len(edited.content) < len(opened.content)
    assert edited.difference.otherwise_identical
    for number in (1, 2, 3):
        expected_scores = own._model(IMAGES[:number])
        np.testing.assert_allclose(run(edited.content, IMAGES[:number]), expected_scores, atol=1e-5)
    onnx.checker.check_model(onnx.load_from_string(edited.content), full_check=True)


@pytest.mark.parametrize("style", KNOWN)
def test_a_network_without_a_head_is_the_one_that_does_not_read_it(style: str) -> None:
    module, opened = styled(style)
    compressor = compressor_of(opened.network)
    assert KNOWN[style] in [target.members for target in compressor.targets]
    assert {"patches", "up"} <= {target.layer for target in compressor.targets}
    kept = compressor.kept_channels({KNOWN[style][0]: 0.34})
    compressor.prune({KNOWN[style][0]: 0.34})
    pruned = compressor._model
    assert pruned.get_submodule("attn.proj").in_features == WIDTH * 2 // HEADS
    assert {len(each) for each in kept.values()} == {pruned.get_submodule(KNOWN[style][0]).out_features}
    differences = []
    for head in range(HEADS):
        other = copy.deepcopy(module)
        with torch.no_grad():
            other.attn.proj.weight.view(WIDTH, HEADS, -1)[:, head] = 0
            differences.append(float((other(IMAGES) - pruned(IMAGES)).abs().max()))
    assert min(differences) < 1e-5
    edited = with_weights(opened, pruned)
    for number in (1, 3):
        np.testing.assert_allclose(run(edited.content, IMAGES[:number]), pruned(IMAGES[:number]).detach(), atol=1e-5)


@pytest.mark.parametrize("style", REFUSED)
def test_attention_whose_heads_are_not_known_keeps_them_and_says_so(style: str) -> None:
    _, opened = styled(style)
    compressor = compressor_of(opened.network)
    assert [target.layer for target in compressor.targets] == ["patches", "up"]
    layers = [name for name in compressor.not_applicable if name != "head"]
    assert layers
    for name in layers:
        assert compressor.not_applicable[name].startswith("Attention is written as matrix products in the file (“attn.")
    assert any(REFUSED[style] in why for why in compressor.not_applicable.values())


def test_a_module_has_no_attention_of_a_graph() -> None:
    module = vit()
    trace = CallTrace(calls=[], uses={}, output=None, batch_size=1, input_last_needed=0.0, input_overwritten=False)
    assert attention_in(module, trace) == ([], {})
