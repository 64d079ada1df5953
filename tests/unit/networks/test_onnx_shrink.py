"""Channels are removed from networks of ONNX files as from the modules they were exported from, and from the files.

Attention that a file writes as matrix products keeps its heads.
"""

import copy
import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.densenet import DenseNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import Applied, CompressionRequest, build_compressor
from senseapp.compressions.pruning.pruning import PruningCompressor
from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.write import shrunk, with_weights
from senseapp.networks.profile import compressible_weights, profile_model
from tests.cases import first_of
from tests.onnx_files import exported, newly_exported
from tests.onnx_graphs import by_onnxruntime, file_of, node, weights

SIDE = 64
IMAGES = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


class UNet(nn.Module):
    """Down and up again by transposed convolution and by interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, padding=1), nn.BatchNorm2d(16), nn.SiLU())
        self.middle = nn.Conv2d(16, 16, 3, 2, padding=1)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.join = nn.Conv2d(32, 8, 3, padding=1)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(first)
        joined = F.gelu(self.join(torch.cat([self.up(self.middle(second)), second], 1)))
        large = F.interpolate(joined, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(torch.cat([large, first], 1))


class Detector(nn.Module):
    """Two stages that are joined, and one head shared by two scales, as in YOLO."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 4, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.split = nn.Conv2d(8, 12, 1)
        self.join = nn.Conv2d(20, 8, 1)
        self.down = nn.Conv2d(8, 8, 3, 2, padding=1)
        self.head = nn.Conv2d(8, 4 + 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        scales = [self.join(torch.cat([F.silu(self.split(stem)), stem], 1))]
        scales.append(F.silu(self.down(scales[0])))
        return torch.cat([self.head(scale).flatten(2).permute(0, 2, 1) for scale in scales], 1).sigmoid()


def small_densenet() -> nn.Module:
    return DenseNet(growth_rate=8, block_config=(2, 2), num_classes=5)


class Gated(nn.Module):
    """A split of which one part is read twice, as exporters write GELU, and a join of two others, as in MambaOut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.up, self.down = nn.Linear(8, 24), nn.Linear(12, 8)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).permute(0, 2, 3, 1)
        gate, plain, convolved = self.up(x).split([12, 8, 4], -1)
        convolved = self.conv(convolved.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = x + self.down(F.gelu(gate) * torch.cat([plain, convolved], -1))
        return self.head(x.mean((1, 2)))


NETWORKS = {
    "resnet": lambda: timm.create_model("resnet10t", num_classes=5),
    "densenet": small_densenet,
    "unet": UNet,
    "detector": Detector,
    "mobilenetv2": lambda: timm.create_model("mobilenetv2_035", num_classes=5),
    "mobilenetv3": lambda: timm.create_model("mobilenetv3_small_050", num_classes=5),
    "convnext": lambda: timm.create_model("convnext_atto", num_classes=5),
}


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a network whose norms have numbers of their own."""
    torch.manual_seed(0)
    network = make().eval()
    for each in network.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.weight.data.uniform_(0.5, 1.5)
            each.bias.data.normal_()
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2)
    return network


def compressor_of(network: nn.Module, images: Tensor) -> PruningCompressor:
    """Return what removes channels from a copy of ``network``."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    layers = profile_model(network, images[:1]).layers
    request = CompressionRequest(model=network, layers=layers, calibration=[images[:1]], seed=0)
    made = build_compressor(PruningConfig(), request)
    assert isinstance(made, PruningCompressor)
    return made


def pruned(network: nn.Module) -> tuple[nn.Module, dict[str, tuple[int, ...]], list[str]]:
    """Return a copy with half of the channels of each group, the kept ones, and the layers of groups."""
    compressor = compressor_of(network, IMAGES)
    ratios = {target.layer: 0.5 for target in compressor.targets}
    kept = compressor.kept_channels(ratios)
    compressor.prune(ratios)
    return compressor._model, kept, list(ratios)


@pytest.mark.parametrize("name", first_of(NETWORKS, 3))
def test_a_file_loses_the_channels_that_its_module_loses(name: str) -> None:
    module = trained(NETWORKS[name])
    opened = open_onnx(exported(module, side=SIDE))
    (own, kept, layers), (built, built_kept, built_layers) = pruned(module), pruned(opened.network)
    assert built_layers == layers != []
    assert {layer: built_kept[layer] for layer in kept if layer in built_kept} == kept
    with torch.no_grad():
        expected, found = own(IMAGES), built(IMAGES)
    scale = float(expected.abs().max())
    assert float((expected - found).abs().max()) <= 1e-5 * scale
    edited = with_weights(opened, built)
    assert len(edited) < len(opened.content)
    assert difference(opened.content, edited).otherwise_identical
    assert not difference(opened.content, edited).removed_nodes
    assert not difference(opened.content, edited).added_nodes
    np.testing.assert_allclose(by_onnxruntime(edited, IMAGES)[0], expected, atol=1e-4 * scale)
    before, after = onnx.load_from_string(opened.content), onnx.load_from_string(edited)
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    assert [each.name for each in before.graph.node] == [each.name for each in after.graph.node]
    onnx.checker.check_model(after, full_check=True)


@pytest.mark.parametrize("newer", [False, True], ids=["older, one image", "newer, any number"])
def test_other_forms_of_an_export_are_the_network_that_it_was_for_any_number_of_images(*, newer: bool) -> None:
    module = trained(UNet)
    opened = open_onnx(newly_exported(module, side=32, free=True) if newer else exported(module, side=32, batch=1))
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = module(images), opened.network(images)
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-5 * wanted.abs().max()))
    mine, theirs = (
        [(name, each.weight.shape) for name, each, _ in compressible_weights(network)]
        for network in (opened.network, module)
    )
    assert mine == theirs


def test_a_part_of_a_split_is_read_twice_where_an_exporter_writes_gelu_in_steps() -> None:
    torch.manual_seed(0)
    module = Gated().eval()
    opened = open_onnx(exported(module, side=SIDE, opset=17))
    (own, kept, layers), (built, built_kept, built_layers) = pruned(module), pruned(opened.network)
    assert built_layers == layers != []
    assert {layer: built_kept[layer] for layer in kept} == kept
    torch.testing.assert_close(built(IMAGES), own(IMAGES))


@pytest.mark.parametrize("name", first_of(["detector", *(name for name in NETWORKS if name != "detector")]))
def test_a_file_of_the_newer_exporter_has_the_groups_of_its_module(name: str) -> None:
    """Norms divide all channels by one number here, so that folding them leaves the order of channels as it is."""
    torch.manual_seed(0)
    module = NETWORKS[name]().eval()
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.weight.data.fill_(1.0)  # some begin at zero
    opened = open_onnx(newly_exported(module, side=SIDE))
    (own, kept, layers), (built, built_kept, built_layers) = pruned(module), pruned(opened.network)
    assert built_layers == layers != []
    shared = kept.keys() & built_kept.keys()
    assert shared >= set(layers)
    assert {layer: built_kept[layer] for layer in shared} == {layer: kept[layer] for layer in shared}
    with torch.no_grad():
        expected, found = own(IMAGES), built(IMAGES)
    assert float((expected - found).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_a_mean_in_another_layout_of_memory_keeps_neither_images_nor_channels() -> None:
    """The newer exporter flattens it and gathers all numbers in order (``as_strided``)."""
    nodes = [
        node("Conv", "x first", "a", pads=[1] * 4), node("ReduceMean", "a axes", "mean"),
        node("Reshape", "mean row", "flat"), node("Gather", "flat places", "kept"),
        node("Conv", "kept last", "scores"), node("Reshape", "scores classes", "y"),
    ]  # fmt: skip
    stored = {
        "first": weights(6, 3, 3, 3), "last": weights(4, 6, 1, 1), "axes": np.array([2, 3]), "row": np.array([-1]),
        "places": np.arange(6).reshape(1, 6, 1, 1), "classes": np.array([1, 4]),
    }  # fmt: skip
    opened = open_onnx(file_of(nodes, stored, shape=(1, 3, SIDE, SIDE)))
    assert opened.notes == ()
    built, _, layers = pruned(opened.network)
    assert layers == ["a"]
    edited = with_weights(opened, built)
    assert difference(opened.content, edited).otherwise_identical
    with torch.no_grad():
        np.testing.assert_allclose(by_onnxruntime(edited, IMAGES[:1])[0], built(IMAGES)[:1], rtol=1e-4)


def test_layers_without_bias_are_layers_where_the_newer_exporter_has_not_optimised() -> None:
    """It computes zeros for the missing bias, in the type of the images and the length of the weight."""
    module = trained(lambda: nn.Sequential(_normed(3, 8), _normed(8, 12), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    opened = open_onnx(newly_exported(module, side=SIDE, optimize=False))
    assert opened.notes == ()
    assert sum(isinstance(each, nn.BatchNorm2d) for each in opened.network.modules()) == 2
    (own, kept, layers), (built, built_kept, built_layers) = pruned(module), pruned(opened.network)
    assert built_layers == layers == ["0.0"]
    assert {layer: built_kept[layer] for layer in kept} == kept
    with torch.no_grad():
        expected = own(IMAGES[:1])
    torch.testing.assert_close(built(IMAGES[:1]), expected)
    edited = with_weights(opened, built)
    np.testing.assert_allclose(by_onnxruntime(edited, IMAGES[:1])[0], expected, atol=1e-5)


@pytest.mark.parametrize("dynamo", [False, True])
def test_folded_norms_are_said_for_they_change_the_order_of_weights(*, dynamo: bool) -> None:
    module = trained(lambda: nn.Sequential(_normed(3, 8), nn.Conv2d(8, 12, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    opened = open_onnx(newly_exported(module, side=SIDE) if dynamo else folded_by_the_older_exporter(module))
    assert "merged further steps into the weights of 1 layer." in " ".join(opened.notes)
    (own, kept, _), (built, built_kept, _) = pruned(module), pruned(opened.network)
    assert kept["0.0"] != built_kept["0.0"]
    assert float((own(IMAGES[:1]) - built(IMAGES[:1])).abs().max()) > 0.01


def folded_by_the_older_exporter(network: nn.Module) -> bytes:
    """Return ``network`` with norms folded into convolutions, for one image."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), (IMAGES[:1],), buffer, dynamo=False)
    return buffer.getvalue()


def _normed(ins: int, outs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(ins, outs, 3, bias=False), nn.BatchNorm2d(outs), nn.ReLU())


def test_a_fixed_target_of_a_flattening_is_corrected() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    opened = open_onnx(newly_exported(network, side=SIDE))
    assert any(node.op_type == "Reshape" for node in onnx.load_from_string(opened.content).graph.node)
    (own, _, layers), (built, _, built_layers) = pruned(network), pruned(opened.network)
    assert layers == built_layers == ["0"]
    edited = with_weights(opened, built)
    np.testing.assert_allclose(by_onnxruntime(edited, IMAGES[:1])[0], own(IMAGES[:1]), atol=1e-5)
    assert difference(opened.content, edited).otherwise_identical


def test_a_weight_in_another_shape_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="cannot lose channels"):
        shrunk([2, 4], [8], [6])


SMALL, WIDTH, HEADS = 16, 24, 3
SMALL_IMAGES = torch.rand(3, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(1))


def vit() -> nn.Module:
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=SMALL, patch_size=4, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=5, mlp_ratio=2
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


def effects(compressor: PruningCompressor, *levels: float) -> dict[tuple[str, float], tuple[Applied, Tensor]]:
    """Return what each level removes from each group, and the scores without it."""
    found = {}
    for target in compressor.targets:
        for level in levels:
            with torch.no_grad(), compressor.compress(target, level) as applied:
                found[target.layer, level] = applied, compressor._model(SMALL_IMAGES)
    return found


@pytest.mark.parametrize("export", [
    pytest.param(lambda module: exported(module, side=SMALL), id="older"),
    pytest.param(lambda module: newly_exported(module, side=SMALL, free=True), id="newer", marks=pytest.mark.wide),
])  # fmt: skip
def test_a_transformer_has_the_groups_of_its_module_but_for_heads(export: Callable[[nn.Module], bytes]) -> None:
    module = vit()
    opened = open_onnx(export(module))
    own, built = compressor_of(module, SMALL_IMAGES), compressor_of(opened.network, SMALL_IMAGES)
    assert [(each.layer, each.members) for each in built.targets] == [
        (each.layer, each.members) for each in own.targets if "qkv" not in each.layer
    ]
    assert [each.layer for each in built.targets] == ["patch_embed.proj", "blocks.0.mlp.fc1", "blocks.1.mlp.fc1"]
    assert "heads are not pruned in ONNX files" in built.not_applicable["blocks.0.attn.qkv"]
    before = built._model(SMALL_IMAGES)
    expected, found = effects(own, 0.34, 0.67), effects(built, 0.34, 0.67)
    for key, (applied, scores) in found.items():
        assert expected[key][0] == applied
        torch.testing.assert_close(expected[key][1], scores, atol=1e-5, rtol=0)
    assert torch.equal(built._model(SMALL_IMAGES), before)  # all is as before

    ratios = {target.layer: 0.34 for target in built.targets}
    assert built.prune(ratios) == own.prune(ratios)
    edited = with_weights(opened, built._model)
    assert len(edited) < len(opened.content)
    assert difference(opened.content, edited).otherwise_identical
    for number in (1, 2, 3):
        expected_scores = own._model(SMALL_IMAGES[:number])
        np.testing.assert_allclose(by_onnxruntime(edited, SMALL_IMAGES[:number])[0], expected_scores, atol=1e-5)
    onnx.checker.check_model(onnx.load_from_string(edited), full_check=True)


@pytest.mark.parametrize(
    ("packed", "layers"), [(True, {"qkv"}), (False, {"query", "key", "value"})], ids=["one layer", "three layers"]
)
def test_layers_of_attention_keep_their_channels_and_say_so(packed: bool, layers: set[str]) -> None:
    torch.manual_seed(0)
    compressor = compressor_of(open_onnx(exported(Attention(packed=packed).eval(), side=SMALL)).network, SMALL_IMAGES)
    assert [target.layer for target in compressor.targets] == ["patches", "up"]
    reasons = {name for name, why in compressor.not_applicable.items() if "heads are not pruned in ONNX files" in why}
    assert reasons == layers
