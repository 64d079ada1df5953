"""Answers of convolutions in 8-bit integers: off by their rounding and no more, and used only where asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.evaluate import spearman
from senseapp.results import LayerMeasurement
from senseapp.sensitivity import Layout, Sweep, quick_scan
from senseapp.sensitivity.folding import norm_scale
from senseapp.sensitivity.quick import integer_answers, scan
from senseapp.sensitivity.quick.integer_answers import RoundedChange, multiplies_integers, rounded_inputs
from senseapp.sensitivity.quick.recorder import LayerCall
from senseapp.spec import CompressionConfig, PruningConfig, QuantizationConfig, SensitivitySpec, SparsityConfig
from tests.small_models import NUM_CLASSES, images_for, small_network

CPU = torch.device("cpu")
needs_units = pytest.mark.skipif(not multiplies_integers(CPU), reason="this processor has no fast 8-bit products")
LAYOUT = Layout(channels_last=True, micro_batch=8)


@pytest.fixture(autouse=True)
def small_calls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_answers, "_LEAST_MACS", 0)


def _call(*args: Any, **kwargs: Any) -> LayerCall:
    return LayerCall(args, kwargs, torch.empty(0))


def _data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _lively_norm(width: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width).eval()
    with torch.no_grad():
        norm.weight.copy_(_data(width, seed=5))  # negative scales among them
        norm.running_var.copy_(_data(width, seed=6).square() + 0.1)
    return norm


@needs_units
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (1, 3), "padding": (0, 1), "stride": (2, 1)},
        {"kernel_size": 3, "padding": 2, "dilation": 2, "bias": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_an_answer_is_the_convolution_of_what_was_rounded(options: dict[str, Any], *, signed: bool) -> None:
    module, norm = nn.Conv2d(16, 24, **options), _lively_norm(24)
    data = _data(3, 16, 15, 13) if signed else _data(3, 16, 15, 13).relu()
    change = _data(*module.weight.shape, seed=1) * (_data(*module.weight.shape, seed=2) > 0.5)
    change[3] = 0  # a channel that nothing happens to
    inputs, rounded = rounded_inputs(module, _call(data)), RoundedChange.of(module, change, norm)
    assert inputs is not None
    assert rounded is not None
    answer = rounded.answer(inputs)

    steps = np.abs(change.numpy()).max(axis=(1, 2, 3), keepdims=True) / 127
    whole = np.rint(np.divide(change.numpy(), steps, out=np.zeros(change.shape), where=steps > 0)) * steps
    seen = (inputs.values.double() - inputs.zero) * inputs.step
    geometry = (None, module.stride, module.padding, module.dilation)
    expected = F.conv2d(seen, torch.from_numpy(whole).double(), *geometry) * norm_scale(norm)[:, None, None]
    assert torch.allclose(answer.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert not answer[:, 3].any()
    assert float((seen - data).abs().max()) <= inputs.step * 0.501
    exact = F.conv2d(data, change, *geometry) * norm_scale(norm)[:, None, None]
    assert float((answer - exact).norm() / exact.norm()) < 0.03


class Own(nn.Conv2d):
    """A convolution that may do anything."""


def _hooked() -> nn.Conv2d:
    module = nn.Conv2d(4, 4, 3)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(2**13, 1, 3),  # its sums might not fit
        nn.Linear(4, 4),
        Own(4, 4, 3),
        _hooked(),
    ],
    ids=["groups", "reflected", "same", "wide", "linear", "subclass", "hooked"],
)
def test_other_layers_are_not_rounded(module: nn.Module) -> None:
    assert rounded_inputs(module, _call(_data(2, 4, 8, 8))) is None


def _with_one(value: float) -> Tensor:
    data = _data(2, 4, 8, 8)
    data[0, 0, 0, 0] = value
    return data


@pytest.mark.parametrize(
    "call",
    [
        _call(_with_one(math.nan)),
        _call(_with_one(math.inf)),
        _call(_with_one(-math.inf)),
        _call(_with_one(1e6)),  # nothing else would be left
        _call(torch.zeros(2, 4, 8, 8)),
        _call(_data(2, 4, 8, 8).double()),
        _call(_data(4, 8, 8)),
        _call(input=_data(2, 4, 8, 8)),
    ],
    ids=["nan", "inf", "-inf", "uneven", "zero", "float64", "no batch", "by name"],
)
def test_inputs_that_rounding_would_hurt_are_not_rounded(call: LayerCall) -> None:
    assert rounded_inputs(nn.Conv2d(4, 4, 3), call) is None


def test_small_calls_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = nn.Conv2d(4, 4, 3, stride=2, padding=1), _call(_data(2, 4, 8, 8))
    macs = 2 * 4 * 4 * (4 * 4 * 3 * 3)
    monkeypatch.setattr(integer_answers, "_LEAST_MACS", macs)
    assert rounded_inputs(module, call) is not None
    monkeypatch.setattr(integer_answers, "_LEAST_MACS", macs + 1)
    assert rounded_inputs(module, call) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_changes_that_are_not_finite_are_not_rounded(value: float) -> None:
    module = nn.Conv2d(4, 4, 3)
    change = torch.ones_like(module.weight)
    change[1, 1, 1, 1] = value
    assert RoundedChange.of(module, change, None) is None


def test_graphics_cards_and_processors_without_such_units_multiply_no_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not multiplies_integers(torch.device("cuda"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_vnni": False})
    assert not multiplies_integers(CPU)


def _scan(
    compression: CompressionConfig, levels: tuple[float, ...], precision: str, model: nn.Module | None = None
) -> tuple[Sweep, list[LayerMeasurement]]:
    spec = SensitivitySpec(compression=compression, levels=levels, precision=precision)  # type: ignore[arg-type]
    sweep = Sweep.open(model or small_network(), images_for(), spec, layout=LAYOUT)
    return sweep, list(quick_scan(sweep))


def _deltas(found: list[LayerMeasurement], metric: str) -> list[float]:
    return [change.delta for item in found if (change := item.change(metric)) is not None]


@needs_units
@pytest.mark.parametrize(
    ("compression", "levels"),
    [
        (SparsityConfig(), (0.2, 0.5, 0.7, 0.9)),
        (SparsityConfig(), (0.9, 0.5, 0.2)),
        (QuantizationConfig(), (8, 6, 4, 3, 2)),  # what eight bits change is a hundredth of what two do
    ],
    ids=["sparsity", "falling", "quantization"],
)
def test_estimates_hardly_change(compression: CompressionConfig, levels: tuple[float, ...]) -> None:
    plain, exact = _scan(compression, levels, "fp32")
    sweep, rounded = _scan(compression, levels, "auto")
    assert [item.key for item in rounded] == [item.key for item in exact]
    for metric in ("kl", "loss"):
        wanted, found = _deltas(exact, metric), _deltas(rounded, metric)
        assert found != wanted
        for index in range(len(levels)):
            here = slice(index, None, len(levels))
            assert found[here] == pytest.approx(wanted[here], rel=0.08, abs=0.01 * max(map(abs, wanted[here])))
            assert spearman(found[here], wanted[here]) > 0.95
    assert "Precision auto estimated 5 convolutions with weights in 8-bit integers." in sweep.notes
    assert not any("integers" in note for note in plain.notes)


class Twice(nn.Module):
    """Calls one convolution twice, and writes into what it gave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.mix = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.mix(self.stem(x)))
        z = self.mix(y)
        z += y
        scores: Tensor = self.head(self.relu(z).mean((2, 3)))
        return scores


@needs_units
def test_layers_called_twice_add_up() -> None:
    _, exact = _scan(SparsityConfig(), (0.5, 0.8), "fp32", Twice().eval())
    sweep, rounded = _scan(SparsityConfig(), (0.5, 0.8), "auto", Twice().eval())
    assert _deltas(rounded, "kl") == pytest.approx(_deltas(exact, "kl"), rel=0.05, abs=1e-6)
    assert "Precision auto estimated 2 convolutions with weights in 8-bit integers." in sweep.notes


@needs_units
def test_a_change_that_is_not_finite_is_left_to_passes() -> None:
    model = small_network()
    with torch.no_grad():
        model.get_submodule("blocks.1.conv2").get_parameter("weight")[0, 0, 0, 0] = math.inf
    sweep, _ = _scan(SparsityConfig(), (0.5,), "auto", model)
    assert "Precision auto estimated 4 convolutions with weights in 8-bit integers." in sweep.notes  # of five


@pytest.mark.parametrize(
    "compression", [QuantizationConfig(activations=True), PruningConfig()], ids=["inputs", "pruning"]
)
def test_compressions_of_more_than_weights_are_not_rounded(compression: CompressionConfig) -> None:
    levels = (0.5,) if isinstance(compression, PruningConfig) else (4.0,)
    sweep, found = _scan(compression, levels, "auto")
    assert found
    assert not any("integers" in note for note in sweep.notes)


def test_bfloat16_is_not_rounded_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "multiplies_integers", lambda _device: True)
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), precision="auto")
    half = Layout(channels_last=True, micro_batch=8, precision="bf16")
    sweep = Sweep.open(small_network(), images_for(), spec, layout=half)
    assert list(quick_scan(sweep))
    assert not any("integers" in note for note in sweep.notes)
