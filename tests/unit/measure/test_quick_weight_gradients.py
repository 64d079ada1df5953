"""Many levels of a layer from one product: the same estimates as from a pass for each level, where it may be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.plan import Layout
from senseapp.measure.quick import responses
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

pytestmark = pytest.mark.usefixtures("tangent_only")  # what is tested here

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
WIDTH, PIXELS = 6, 16
LAYOUT = Layout(channels_last=True, micro_batch=2)


class Mixed(nn.Module):
    """A stem, ``mix`` at each position of what it gives out, three classes."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.mix = mix
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.mixed(self.stem(x))).mean((2, 3)))

    def mixed(self, x: Tensor) -> Any:
        return self.mix(x)


class Tokens(Mixed):
    def mixed(self, x: Tensor) -> Any:
        return self.mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


class TokensFirst(Mixed):
    """Its layer takes (positions, N, channels)."""

    def mixed(self, x: Tensor) -> Any:
        return self.mix(x.flatten(2).permute(2, 0, 1)).permute(1, 2, 0).reshape(x.shape)


class Windows(Mixed):
    """Its layer takes (N · windows, positions, channels)."""

    def mixed(self, x: Tensor) -> Any:
        rows = x.flatten(2).transpose(1, 2).reshape(-1, 64, WIDTH)
        return self.mix(rows).reshape(len(x), -1, WIDTH).transpose(1, 2).reshape(x.shape)


def _scan(model: nn.Module, compression: CompressionConfig, levels: tuple[float, ...]) -> dict[Any, float]:
    generator = torch.Generator().manual_seed(0)
    images = TensorImages(torch.randn(12, 3, PIXELS, PIXELS, generator=generator), torch.arange(12) % 3)
    spec = SensitivitySpec(compression=compression, levels=levels, layers=("mix*",))
    found = list(quick_scan(Sweep.open(model.eval(), images, spec, layout=LAYOUT, task=CLASSIFICATION)))
    return {(item.key, change.metric): change.delta for item in found for change in item.changes}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """What was made of the weight's gradients, for each batch."""
    made: list[Tensor | None] = []
    wrapped = responses.weight_gradients

    def watched(*args: Any) -> Tensor | None:
        made.append(wrapped(*args))
        return made[-1]

    monkeypatch.setattr(responses, "weight_gradients", watched)
    return made


@pytest.mark.parametrize(
    "build",
    [
        lambda: Mixed(nn.Conv2d(WIDTH, WIDTH, 1)),
        lambda: Mixed(nn.Conv2d(WIDTH, WIDTH, 1, stride=(1, 2), bias=False)),
        lambda: Tokens(nn.Linear(WIDTH, WIDTH)),
        lambda: TokensFirst(nn.Linear(WIDTH, WIDTH)),
        lambda: Windows(nn.Linear(WIDTH, WIDTH)),
    ],
    ids=["pointwise", "strided", "tokens", "positions first", "windows"],
)
@pytest.mark.parametrize(
    ("compression", "levels"),
    [(SparsityConfig(), LEVELS), (QuantizationConfig(), (8, 6, 4, 3, 2))],
    ids=["sparsity", "quantization"],
)
def test_estimates_are_those_of_a_pass_for_each_level(
    build: Callable[[], nn.Module],
    compression: CompressionConfig,
    levels: tuple[float, ...],
    products: list[Tensor | None],
) -> None:
    model = build()
    at_once = _scan(model, compression, levels)
    assert products
    assert all(made is not None for made in products)
    products.clear()
    alone = {key: value for level in levels for key, value in _scan(model, compression, (level,)).items()}
    assert products
    assert all(made is None for made in products)
    assert len(at_once) == 2 * len(levels)
    assert at_once == pytest.approx(alone, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize(
    "mix",
    [
        nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU()),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        nn.Conv2d(WIDTH, WIDTH, 1, groups=2),
        nn.Conv2d(WIDTH, WIDTH, 1, padding=1),
    ],
    ids=["activation behind it", "wider kernel", "groups", "padding"],
)
def test_other_layers_are_run_again(mix: nn.Module, products: list[Tensor | None]) -> None:
    assert _scan(Mixed(mix), SparsityConfig(), LEVELS)
    assert products
    assert all(made is None for made in products)


def test_layers_whose_input_is_rounded_too_are_run_again(products: list[Tensor | None]) -> None:
    assert _scan(Mixed(nn.Conv2d(WIDTH, WIDTH, 1)), QuantizationConfig(activations=True), (8, 6, 4, 3, 2))
    assert products == []


def test_gradients_that_would_take_too_much_memory_are_not_made(
    products: list[Tensor | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("senseapp.measure.quick.responses._MOST_BYTES", 100)
    assert _scan(Mixed(nn.Conv2d(WIDTH, WIDTH, 1)), SparsityConfig(), LEVELS)
    assert all(made is None for made in products)
