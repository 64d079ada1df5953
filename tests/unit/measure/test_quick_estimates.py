"""The quick scan: right where the network is linear, robust where it cannot see."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.plan import Layout
from senseapp.measure.quick import scan
from senseapp.measure.quick.recorder import Calls, LayerCall, Recorder
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.spec import Mode, SensitivitySpec
from senseapp.tasks import CLASSIFICATION

pytestmark = pytest.mark.usefixtures("tangent_only")  # what is tested here

WIDTH, PIXELS = 6, 8


def _images(count: int = 24, classes: int = 3) -> TensorImages:
    pictures = torch.randn(count, 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(0))
    return TensorImages(pictures, torch.arange(count) % classes)


def _sweep(
    model: nn.Module,
    compression: CompressionConfig | None = None,
    levels: tuple[float, ...] = (0.5,),
    *,
    images: TensorImages | None = None,
    micro_batch: int = 16,
    seed: int = 0,
    mode: Mode = "exact",
) -> Sweep:
    spec = SensitivitySpec(compression=compression or SparsityConfig(), levels=levels, seed=seed, mode=mode)
    return Sweep.open(
        model.eval(), images or _images(), spec, layout=Layout(micro_batch=micro_batch), task=CLASSIFICATION
    )


def _by_key(items: list[LayerMeasurement], metric: str = "kl") -> dict[tuple[str, float], float]:
    return {item.key: change.delta for item in items if (change := item.change(metric))}


class Linear(nn.Sequential):
    """Linear but for an ``activation``, three classes: two directions know everything about the scores."""

    def __init__(self, classes: int = 3, activation: nn.Module | None = None) -> None:
        between = () if activation is None else (nn.BatchNorm2d(WIDTH), activation)
        readout = nn.Linear(WIDTH * PIXELS**2, classes)
        super().__init__(nn.Conv2d(3, WIDTH, 3, padding=1), *between, nn.Flatten(), readout)


@pytest.mark.parametrize(
    ("compression", "levels", "activation"),
    [
        (SparsityConfig(), (0.3, 0.6, 0.95), None),
        (SparsityConfig(), (0.3, 0.6, 0.95), nn.ReLU6(inplace=True)),
        (QuantizationConfig(), (8, 4, 2), None),
        (QuantizationConfig(), (8, 4, 2), nn.Hardswish()),
        (QuantizationConfig(activations=True), (8, 4, 2), None),
        (PruningConfig(), (0.2, 0.5), None),
    ],
)
def test_on_a_network_that_is_linear_after_an_activation_estimates_are_measurements(
    compression: CompressionConfig, levels: tuple[float, ...], activation: nn.Module | None
) -> None:
    sweep = _sweep(Linear(activation=activation), compression, levels)
    estimates, measured = list(quick_scan(sweep)), list(sweep.measure())
    for metric in ("kl", "loss"):
        assert _by_key(estimates, metric).keys() == _by_key(measured, metric).keys()
        for key, value in _by_key(measured, metric).items():
            assert _by_key(estimates, metric)[key] == pytest.approx(value, rel=2e-3, abs=1e-6)
    assert all(item.estimated for item in estimates)
    assert not sweep.notes


def test_the_first_images_give_estimates_before_the_others() -> None:
    told: list[LayerMeasurement] = []
    model, images = Linear(), _images()
    estimates = list(quick_scan(_sweep(model, micro_batch=4), told.extend))
    assert _by_key(estimates) == _by_key(list(quick_scan(_sweep(model, micro_batch=4))))
    measured = _by_key(list(_sweep(model, images=TensorImages(images.images[:8], images.labels[:8])).measure()))
    assert _by_key(told) == pytest.approx(measured, rel=2e-3, abs=1e-6)
    assert {change.num_samples for item in told for change in item.changes} == {8}
    assert all(item.estimated for item in told)
    whole: list[LayerMeasurement] = []
    list(quick_scan(_sweep(model, micro_batch=24), whole.extend))
    assert not whole  # one pass holds all images


def test_estimates_say_what_the_compression_would_do() -> None:
    sweep = _sweep(Linear(), PruningConfig(), (0.5,))
    (estimate,), measured = list(quick_scan(sweep)), list(sweep.measure())
    (exact,) = (item for item in measured if item.status is Status.MEASURED)
    for name in ("layer", "group", "members", "achieved_level", "removed_params", "removed_macs"):
        assert getattr(estimate, name) == getattr(exact, name)


class Network(nn.Module):
    """A stem, something in the middle, three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.inner = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.middle(self.stem(x)).mean((2, 3)))

    def middle(self, x: Tensor) -> Any:
        return F.relu(self.inner(F.relu(x)))


class InPlace(Network):
    def middle(self, x: Tensor) -> Any:
        return F.relu_(self.inner(F.relu_(x)))


class CalledTwice(Network):
    def middle(self, x: Tensor) -> Any:
        return self.inner(torch.tanh(self.inner(x)))


class BatchSecond(Network):
    """Its layer takes (positions, N, channels)."""

    def middle(self, x: Tensor) -> Any:
        return torch.tanh(self.mix(x.flatten(2).permute(2, 0, 1))).permute(1, 2, 0).reshape(x.shape)


def _first_order(model: nn.Module, name: str, images: TensorImages) -> tuple[Tensor, Tensor]:
    """Return the scores and their change to first order when half of the smallest weights of ``name`` go."""
    weight = model.get_parameter(f"{name}.weight").detach()
    threshold = weight.abs().flatten().kthvalue(weight.numel() // 2).values
    change = torch.where(weight.abs() <= threshold, -weight, 0)

    def scores_of(values: Tensor) -> Any:
        return torch.func.functional_call(model, {f"{name}.weight": values}, (images.images,))

    scores, moved = torch.func.jvp(scores_of, (weight,), (change,))[:2]
    return scores, moved


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (Network, "stem"),
        (Network, "inner"),
        (InPlace, "stem"),
        (InPlace, "inner"),
        (CalledTwice, "inner"),
        (BatchSecond, "mix"),
    ],
)
def test_estimates_are_those_of_forward_differentiation(build: Callable[[], nn.Module], name: str) -> None:
    model, images = build().eval(), _images()
    found = _by_key(list(quick_scan(_sweep(model, images=images))))[name, 0.5]
    scores, moved = _first_order(model, name, images)
    before, after = scores.double().log_softmax(1), (scores + moved).double().log_softmax(1)
    assert found == pytest.approx((before.exp() * (before - after)).sum(dim=1).mean().item(), rel=1e-3)


@pytest.mark.parametrize("compression", [SparsityConfig(), PruningConfig()], ids=["sparsity", "pruning"])
def test_deterministic_whatever_the_batches(compression: CompressionConfig) -> None:
    model, images = Linear(classes=8), _images(classes=8)
    runs = [
        _by_key(list(quick_scan(_sweep(model, compression, images=images, micro_batch=size)))) for size in (16, 16, 3)
    ]
    assert runs[0] == runs[1]
    assert runs[2] == pytest.approx(runs[0], rel=1e-4)


def test_the_seed_draws_the_probe() -> None:
    model, images = Linear(classes=8), _images(classes=8)
    first, second = (_by_key(list(quick_scan(_sweep(model, images=images, seed=seed)))) for seed in (0, 1))
    assert first != second
    assert second == pytest.approx(first, rel=0.5)


def test_images_without_labels_get_no_loss() -> None:
    estimates = list(quick_scan(_sweep(Linear(), images=TensorImages(_images().images))))
    assert _by_key(estimates)
    assert not _by_key(estimates, "loss")


def test_one_image() -> None:
    sweep = _sweep(Linear(), images=_images(1))
    estimates, measured = _by_key(list(quick_scan(sweep))), _by_key(list(sweep.measure()))
    assert estimates == pytest.approx(measured, rel=2e-3)


class Uncalled(Network):
    """Reads the weight of one layer without calling it, and hides another from autograd."""

    def middle(self, x: Tensor) -> Any:
        return (
            F.conv2d(x, self.inner.weight, self.inner.bias, padding=1)
            + self.mix(x.mean((2, 3)).detach())[..., None, None].detach()
        )


def test_what_cannot_be_seen_has_no_estimate_and_a_note() -> None:
    sweep = _sweep(Uncalled())
    assert {item.layer for item in quick_scan(sweep)} == {"stem", "head"}
    assert sweep.notes == ["The quick scan has no estimate for 2 of 4 targets."]
    list(quick_scan(sweep))
    assert len(sweep.notes) == 1
    measured = {item.layer for item in sweep.measure() if item.status is Status.MEASURED}
    assert measured == {"stem", "inner", "mix", "head"}


class NotDifferentiable(Network):
    """Overwrites what the sigmoid's derivative needs."""

    def middle(self, x: Tensor) -> Any:
        return torch.sigmoid(x).mul_(2)


def test_a_model_that_autograd_refuses_is_still_measured() -> None:
    sweep = _sweep(NotDifferentiable())
    assert list(quick_scan(sweep)) == []
    assert sweep.notes[-1].startswith("There is no quick scan: RuntimeError: one of the variables needed")
    assert all(parameter.grad is None for parameter in sweep.context.model.parameters())
    assert {item.layer for item in sweep.measure() if item.status is Status.MEASURED} >= {"stem", "head"}


class NotFinite(Network):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) / 0


def test_outputs_that_are_not_finite_have_no_estimate() -> None:
    sweep = _sweep(NotFinite())
    assert list(quick_scan(sweep)) == []
    assert any("no estimate" in note for note in sweep.notes)


def test_costly_networks_are_scanned_on_fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = _sweep(Linear(), images=_images(200), mode="quick")
    assert scan.num_images(sweep) == 200
    monkeypatch.setattr(scan, "_MOST_MACS", 1.0)
    assert scan.num_images(sweep) == 64
    (change, *_) = next(quick_scan(sweep)).changes
    assert change.num_samples == 64


def test_memory_bounds_the_images_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = _sweep(Linear())
    assert scan.graph_batch(sweep) == 32
    monkeypatch.setattr(scan, "_GRAPH_BYTES", 3 * 4 * 2 * (WIDTH * PIXELS**2 * 2 + 3))
    assert scan.graph_batch(sweep) == 3


class Chosen(Network):
    """A layer in front says which of two gains an image gets: whole numbers, which nothing can be followed through."""

    class Choice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).argmax(dim=1)

    def __init__(self) -> None:
        super().__init__()
        self.choice = self.Choice(3 * PIXELS**2, 2)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x * (1 + self.choice(x.flatten(1)))[:, None, None, None])


def test_a_layer_that_returns_whole_numbers_is_left_out() -> None:
    sweep = _sweep(Chosen())
    assert {item.layer for item in quick_scan(sweep)} == {"stem", "inner", "head"}
    assert sweep.notes == ["The quick scan has no estimate for 1 of 4 targets."]


@pytest.mark.parametrize("compression", [SparsityConfig(), PruningConfig()], ids=["sparsity", "pruning"])
def test_one_batch_is_let_go_of_before_the_next_is_recorded(
    compression: CompressionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[weakref.ref[LayerCall]] = []
    run = Recorder.run

    def watched(self: Recorder, model: nn.Module, batch: Tensor) -> tuple[Tensor, Calls]:
        assert not any(call() for call in recorded)
        output, calls = run(self, model, batch)
        recorded.extend(weakref.ref(call) for found in calls.values() for call in found)
        return output, calls

    monkeypatch.setattr(Recorder, "run", watched)
    assert list(quick_scan(_sweep(Linear(), compression, micro_batch=4)))
    assert len(recorded) >= 3
