"""Channels are removed from networks of ONNX files as from the modules they were exported from, and from the files."""

from __future__ import annotations

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
from torch import Tensor, nn

from senseapp.compressions import PruningConfig
from senseapp.compressions.base import CompressionRequest, build_compressor
from senseapp.core.errors import InvalidSpec
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.write import shrunk, with_weights
from senseapp.networks.profile import compressible_weights, profile_model
from tests.cases import first_of
from tests.onnx_files import exported, newly_exported
from tests.onnx_graphs import by_onnxruntime

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


def pruned(network: nn.Module) -> tuple[nn.Module, dict[str, tuple[int, ...]], list[str]]:
    """Return a copy with half of the channels of each group, the kept ones, and the layers of groups."""
    network = copy.deepcopy(network).eval().requires_grad_(False)
    layers = profile_model(network, IMAGES[:1]).layers
    request = CompressionRequest(model=network, layers=layers, calibration=[IMAGES[:1]], seed=0)
    compressor = build_compressor(PruningConfig(), request)
    ratios = {target.layer: 0.5 for target in compressor.targets}
    kept = compressor.kept_channels(ratios)
    compressor.prune(ratios)
    return network, kept, list(ratios)


@pytest.mark.parametrize("name", first_of(NETWORKS, 5))
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
    assert len(edited.content) < len(opened.content)
    assert edited.difference.otherwise_identical
    assert not edited.difference.removed_nodes
    assert not edited.difference.added_nodes
    np.testing.assert_allclose(by_onnxruntime(edited.content, IMAGES)[0], expected, atol=1e-4 * scale)
    before, after = onnx.load_from_string(opened.content), onnx.load_from_string(edited.content)
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
    np.testing.assert_allclose(by_onnxruntime(edited.content, IMAGES[:1])[0], expected, atol=1e-5)


@pytest.mark.parametrize("dynamo", [False, True])
def test_folded_norms_are_said_for_they_change_the_order_of_weights(*, dynamo: bool) -> None:
    module = trained(lambda: nn.Sequential(_normed(3, 8), nn.Conv2d(8, 12, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    opened = open_onnx(newly_exported(module, side=SIDE) if dynamo else folded_by_the_older_exporter(module))
    assert "folded batch norms into the weights of 1 layer." in " ".join(opened.notes)
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
    np.testing.assert_allclose(by_onnxruntime(edited.content, IMAGES[:1])[0], own(IMAGES[:1]), atol=1e-5)
    assert edited.difference.otherwise_identical


def test_a_weight_in_another_shape_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="cannot lose channels"):
        shrunk([2, 4], [8], [6])
