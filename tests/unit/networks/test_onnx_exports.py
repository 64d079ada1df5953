"""Networks exported by torch's two exporters, with the batch fixed and free, are read as what they were."""

from __future__ import annotations

import io
import warnings

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.profile import compressible_weights
from tests.cases import seldom

EXPORTERS = [
    pytest.param(dynamo, free, id=f"{'newer' if dynamo else 'older'}-{'free' if free else 'fixed'}")
    for dynamo in (False, True)
    for free in (False, True)
]


class _UNet(nn.Module):
    """Down, up by transposed convolution and by interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
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


class _Detector(nn.Module):
    """One head shared by two scales, decoded as YOLO does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 4, padding=1)
        self.down = nn.Conv2d(8, 8, 3, 2, padding=1)
        self.head = nn.Conv2d(8, 4 + 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scales = [F.hardswish(self.stem(x))]
        scales.append(F.hardswish(self.down(scales[0])))
        rows = []
        for scale, stride in zip(scales, (4, 8), strict=True):
            found = self.head(scale).flatten(2).permute(0, 2, 1)
            height, width = scale.shape[2:]
            places = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1)
            centres = (found[..., :2].sigmoid() * 2 - 0.5 + places.reshape(1, -1, 2)) * stride
            sizes = found[..., 2:4].exp() * stride
            rows.append(torch.cat([centres, sizes, found[..., 4:].sigmoid()], -1))
        return torch.cat(rows, 1)


class _Attention(nn.Module):
    """Patches, a class token, one joint projection, attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16))
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.proj = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        n, length, width = x.shape
        query, key, value = self.qkv(self.norm(x)).reshape(n, length, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(n, length, width)
        return self.head((x + self.proj(mixed))[:, 0])


def _exported(model: nn.Module, side: int, *, dynamo: bool, free: bool) -> bytes:
    written = io.BytesIO()
    images = torch.rand(2 if dynamo and free else 1, 3, side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({0: torch.export.Dim("images", min=1, max=64)},) if free else None
            program = torch.onnx.export(model, (images,), dynamo=True, verbose=False, dynamic_shapes=shapes)
            assert program is not None
            program.save(written)
        else:
            axes = {"x": {0: "n"}} if free else None
            torch.onnx.export(model, (images,), written, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return written.getvalue()


def _check(model: nn.Module, side: int, *, dynamo: bool, free: bool) -> OpenedOnnx:
    opened = open_onnx(_exported(model, side, dynamo=dynamo, free=free))
    images = torch.rand(3, 3, side, side)
    with torch.no_grad():
        wanted, found = model(images), opened.network(images)
    assert opened.difference < 1e-5
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-5 * wanted.abs().max()))
    return opened


@pytest.mark.slow
@pytest.mark.parametrize(("dynamo", "free"), EXPORTERS)
@pytest.mark.parametrize("build", [_UNet, seldom(_Detector), seldom(_Attention)])
def test_an_export_is_the_network_that_it_was(build: type[nn.Module], *, dynamo: bool, free: bool) -> None:
    torch.manual_seed(0)
    model = build().eval()
    opened = _check(model, 32, dynamo=dynamo, free=free)
    mine = {name: each.weight for name, each, _ in compressible_weights(opened.network)}
    theirs = {name: each.weight for name, each, _ in compressible_weights(model)}
    assert list(mine) == list(theirs)
    assert [each.shape for each in mine.values()] == [each.shape for each in theirs.values()]


@pytest.mark.wide
@pytest.mark.architectures
@pytest.mark.parametrize(("dynamo", "free"), EXPORTERS)
@pytest.mark.parametrize(
    ("name", "side"), [("resnet10t", 64), ("mobilenetv3_small_050", 64), ("test_vit", 160), ("test_convnext", 96)]
)
def test_an_export_of_a_known_architecture_is_read(name: str, side: int, *, dynamo: bool, free: bool) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).eval()
    opened = _check(model, side, dynamo=dynamo, free=free)
    assert len(list(compressible_weights(opened.network))) == len(list(compressible_weights(model)))
