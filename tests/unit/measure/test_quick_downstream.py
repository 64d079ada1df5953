"""Following a layer's answer through the modules it runs straight into: exact where it applies, absent elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.plan import Layout
from senseapp.measure.quick import responses, scan
from senseapp.measure.quick.recorder import downstream_modules
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.trace import trace_calls
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import seldom
from tests.small_models import chain, small_network

pytestmark = pytest.mark.usefixtures("tangent_only")  # what is tested here

WIDTH, PIXELS, CLASSES = 6, 8, 3


def _images(pixels: int = PIXELS, count: int = 12) -> TensorImages:
    pictures = torch.randn(count, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
    return TensorImages(pictures, torch.arange(count) % CLASSES)


def _sweep(model: nn.Module, config: CompressionConfig, levels: tuple[float, ...], pixels: int = PIXELS) -> Sweep:
    spec = SensitivitySpec(compression=config, levels=levels)
    return Sweep.open(model.eval(), _images(pixels), spec, layout=Layout(micro_batch=8), task=CLASSIFICATION)


def _kl(items: Any) -> dict[tuple[str, float], float]:
    return {item.key: item.change("kl").delta for item in items}


def _names(model: nn.Module) -> dict[str, list[list[str]]]:
    """Return the class names of the modules downstream of each layer."""
    found = downstream_modules(trace_calls(model.eval(), _images(count=1).images), model)
    layers = {name for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}
    return {n: [[type(f.module).__name__ for f in own] for own in calls] for n, calls in found.items() if n in layers}


def bent_once(inplace: bool = False, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a network that is linear but for one activation after its first layer and the softmax."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(WIDTH)
    norm.running_mean, norm.running_var = torch.randn(WIDTH), torch.rand(WIDTH) + 0.5
    bend = activation(inplace=True) if inplace else activation()
    layers = [nn.Conv2d(3, WIDTH, 3, padding=1), norm, bend, nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(WIDTH * PIXELS**2 // 4, CLASSES))


@pytest.mark.parametrize(
    "model", [bent_once(), bent_once(inplace=True), bent_once(activation=nn.GELU)], ids=["relu", "in place", "gelu"]
)
@pytest.mark.parametrize(
    ("config", "levels"),
    [(SparsityConfig(), (0.5, 0.95)), (QuantizationConfig(), (3, 2)), (QuantizationConfig(activations=True), (2,))],
    ids=["sparsity", "quantization", "activations"],
)
def test_large_changes_are_exact_where_only_the_next_activation_bends(
    model: nn.Module, config: CompressionConfig, levels: tuple[float, ...]
) -> None:
    sweep = _sweep(model, config, levels)
    estimates, measured = _kl(quick_scan(sweep)), _kl(sweep.measure())
    assert estimates.keys() == measured.keys()
    for key, value in measured.items():
        assert estimates[key] == pytest.approx(value, rel=5e-3, abs=1e-6)


class Trap(nn.Module):
    """One layer whose output runs somewhere, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.one, self.other = nn.ReLU(), nn.Tanh()
        self.norm = nn.BatchNorm2d(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.middle(self.layer(x)).mean((2, 3)))


class ReadAround(Trap):
    def middle(self, y: Tensor) -> Any:
        return self.one(y) + y


class ReadTwice(Trap):
    def middle(self, y: Tensor) -> Any:
        return self.one(y) + self.other(y)


class ReadLater(Trap):
    """The second activation's input is read on."""

    def middle(self, y: Tensor) -> Any:
        z = self.norm(y)
        return self.one(z) * z.mean()


class ChangedBefore(Trap):
    def middle(self, y: Tensor) -> Any:
        y += 1
        return self.one(y)


class NotAlone(Trap):
    """A module that takes more than the layer's output."""

    class Gate(nn.Module):
        def forward(self, y: Tensor, factor: float) -> Tensor:
            return torch.relu(y) * factor

    def __init__(self) -> None:
        super().__init__()
        self.gate = self.Gate()

    def middle(self, y: Tensor) -> Any:
        return self.gate(y, 0.5)


class Functional(Trap):
    def middle(self, y: Tensor) -> Any:
        return F.relu(y)


TRAPS = (ReadAround, ReadTwice, ReadLater, ChangedBefore, NotAlone, Functional)


@pytest.mark.parametrize("trap", TRAPS)
def test_what_is_read_elsewhere_too_is_not_followed(trap: type[Trap]) -> None:
    torch.manual_seed(0)
    model = trap()
    assert _names(model)["layer"] == [[]]
    assert _same_for_small_changes(model)


def test_chains_end_where_the_network_adds_or_another_layer_begins() -> None:
    found = _names(small_network())
    assert found["blocks.0.conv1"] == [["BatchNorm2d", "ReLU"]]
    assert found["blocks.0.conv2"] == [[]]
    assert found["stem"] == [[]]
    assert found["head"] == [[]]


def test_what_is_linear_at_the_end_of_a_chain_is_left_out() -> None:
    assert _names(chain()) == {f"conv{index}": [["ReLU"]] for index in range(4)} | {"head": [[]]}


class HandedOn(Trap):
    """The layer's output passes through a module that does nothing, and is read by the one behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Identity()

    def middle(self, y: Tensor) -> Any:
        return self.one(self.idle(self.norm(y)))


class HandedOnAndRead(HandedOn):
    def middle(self, y: Tensor) -> Any:
        z = self.norm(y)
        return self.one(self.idle(z)) + z


def test_what_hands_its_argument_on_is_passed_through() -> None:
    torch.manual_seed(0)
    assert _names(HandedOn())["layer"] == [["BatchNorm2d", "Identity", "ReLU"]]
    assert _names(HandedOnAndRead())["layer"] == [[]]
    assert _same_for_small_changes(HandedOn())
    assert _same_for_small_changes(HandedOnAndRead())


class NormsFirst(Trap):
    """Blocks of norm, activation and layer: each norm follows the layer of the block before."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 1)) for _ in range(3))
        )

    def middle(self, y: Tensor) -> Any:
        return self.blocks(y)


@pytest.mark.parametrize(
    "model",
    [small_network(), bent_once(inplace=True), HandedOn(), NormsFirst()],
    ids=["two", "one", "idle", "norms first"],
)
@pytest.mark.parametrize(
    ("config", "levels"),
    [
        (SparsityConfig(), (0.5, 0.9)),
        (QuantizationConfig(), (8, 3, 2)),
        (QuantizationConfig(activations=True), (4, 2)),
        (PruningConfig(), (0.5,)),
    ],
    ids=["sparsity", "quantization", "activations", "pruning"],
)
def test_estimates_are_the_same_whether_norms_are_folded_or_not(
    model: nn.Module, config: CompressionConfig, levels: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = _sweep(model, config, levels)
    folded = _kl(quick_scan(sweep))
    monkeypatch.setattr(scan, "foldable_norms", _no_norms)
    assert folded == pytest.approx(_kl(quick_scan(sweep)), rel=2e-3, abs=1e-8)
    assert folded
    assert not sweep.notes


def _same_for_small_changes(model: nn.Module, pixels: int = PIXELS) -> bool:
    """Return whether 8 bits hurt each layer alike with and without following: no other path was missed."""
    sweep = _sweep(model, QuantizationConfig(), (8,), pixels)
    followed = _kl(quick_scan(sweep))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(responses, "downstream_modules", _nothing_followed)
        patch.setattr(scan, "foldable_norms", _no_norms)
        plain = _kl(quick_scan(sweep))
    assert followed.keys() == plain.keys()
    assert len(followed) > 1
    assert not sweep.notes
    return all(followed[key] == pytest.approx(plain[key], rel=0.25, abs=1e-12) for key in plain)


def _no_norms(_trace: Any, _model: nn.Module) -> dict[str, Any]:
    return {}


def _nothing_followed(trace: Any, model: nn.Module, _norms: Any) -> Any:
    return {name: [() for _ in calls] for name, calls in downstream_modules(trace, model).items()}


@pytest.mark.architectures
@pytest.mark.parametrize(
    "name",
    [
        *("resnet10t", "mobilenetv3_small_050", "vit_tiny"),
        *map(seldom, ("densenet121", "resnetv2_50", "convnext_atto", "ghostnet_050")),
    ],
)
def test_no_path_is_missed_in_real_networks(name: str) -> None:
    torch.manual_seed(0)
    model = (
        timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=CLASSES)
        if name == "vit_tiny"
        else timm.create_model(name, num_classes=CLASSES)
    )
    chains = downstream_modules(trace_calls(model.eval(), _images(32, count=1).images), model)
    assert any(chain for calls in chains.values() for chain in calls)
    assert _same_for_small_changes(model, pixels=32)
