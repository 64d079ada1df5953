"""Large estimates of the quick scan: bounded, corrected by true passes, and the arithmetic of both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import MeasurementFailed
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.plan import PlannedTarget
from senseapp.measure.quick import true_passes
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.quick.true_passes import TruePasses, composite, correction_note, draw_sample
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from senseapp.tasks.classification.directions import largest_divergence

COUNT, CLASSES = 48, 5


class Waking(nn.Module):
    """Units that are silent until something is taken away: no gradient at the dense weights knows of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 12)
        self.between = nn.Linear(12, 24)
        self.head = nn.Linear(24, CLASSES)
        with torch.no_grad():
            self.first.weight.abs_()
            self.between.weight.abs_().neg_()
            self.between.bias.fill_(2.3)
            self.head.weight.mul_(8)

    def forward(self, x: Tensor) -> Any:
        return self.head(F.relu(self.between(self.first(x.flatten(1).abs() + 0.5)).add(0)))


def _images(count: int = COUNT) -> TensorImages:
    return TensorImages(torch.randn(count, 3, 2, 2, generator=torch.Generator().manual_seed(0)))


def _sweep(
    compression: CompressionConfig | None = None, levels: tuple[float, ...] = (0.5, 0.9), model: nn.Module | None = None
) -> Sweep:
    spec = SensitivitySpec(compression=compression or SparsityConfig(), levels=levels, mode="quick")
    return Sweep.open((model or Waking()).eval(), _images(), spec, task=CLASSIFICATION)


def _estimates(sweep: Sweep) -> dict[tuple[str, float], float]:
    return {item.key: change.delta for item in quick_scan(sweep) if (change := item.change("kl"))}


def _measured(sweep: Sweep) -> dict[tuple[str, float], float]:
    found = (item for item in sweep.measure() if item.status is Status.MEASURED)
    return {item.key: change.delta for item in found if (change := item.change("kl"))}


def _uncorrected(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, float], float]:
    with monkeypatch.context() as patch:
        patch.setattr(true_passes, "_LARGE_NATS", float("inf"))
        return _estimates(sweep)


def test_units_that_wake_up_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before, sweep = _uncorrected(_sweep(), monkeypatch), _sweep()
    estimates, measured = list(quick_scan(sweep)), _measured(_sweep())
    after = {item.key: change.delta for item in estimates if (change := item.change("kl"))}
    key = ("first", 0.9)
    assert measured[key] > 3 * before[key]
    assert after[key] == pytest.approx(measured[key], rel=0.2)
    passed = {item.key for item in estimates if item.images_passed}
    assert key in passed
    assert {item.images_passed for item in estimates} <= {0, COUNT}
    layers = len({layer for layer, _ in passed})
    assert correction_note(estimates) == (
        f"Estimates of {layers} layer{'s' if layers > 1 else ''} were corrected by {len(passed)} true "
        f"pass{'es' if len(passed) > 1 else ''} over {COUNT} images.",
    )
    assert correction_note(sweep.measure()) == ()


def test_a_composite_is_nearer_than_either_of_its_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(60, generator=generator, dtype=torch.float64).exp() + 0.2
    each = truth[:, None] * (0.7 * torch.randn(60, 100, generator=generator, dtype=torch.float64)).exp()
    each *= (truth / each.mean(dim=1))[:, None]
    factors = (0.6 * torch.randn(60, generator=generator, dtype=torch.float64)).exp()
    estimated = (factors * truth)[:, None] * torch.rand(60, 100, generator=generator, dtype=torch.float64) * 2
    sample = draw_sample(estimated, 3)
    measured = each[:, sample.indices]
    found = composite(estimated.mean(dim=1), torch.arange(60), measured, sample, 100)
    parts = (found, estimated.mean(dim=1), measured.mean(dim=1))
    errors = [float((part / truth).log().square().mean().sqrt()) for part in parts]
    assert errors[0] < 0.9 * min(errors[1:])


@pytest.mark.parametrize(
    ("compression", "levels"),
    [(SparsityConfig(), (0.5, 0.9)), (QuantizationConfig(), (3, 2)), (PruningConfig(), (0.3, 0.6))],
    ids=["sparsity", "quantization", "pruning"],
)
def test_estimates_are_finite_repeatable_and_say_so(
    compression: CompressionConfig, levels: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(true_passes, "_LARGE_NATS", 1e-3)
    sweep = _sweep(compression, levels)
    state = {name: value.clone() for name, value in sweep.context.model.state_dict().items()}
    first, second = list(quick_scan(sweep)), list(quick_scan(_sweep(compression, levels)))
    assert [item.changes for item in first] == [item.changes for item in second]
    assert all(item.estimated for item in first)
    for item in first:
        change = item.change("kl")
        assert change is not None
        assert change.num_samples == COUNT
        assert 0 <= change.ci_low <= change.delta <= change.ci_high < float("inf")
    assert all(torch.equal(value, state[name]) for name, value in sweep.context.model.state_dict().items())
    assert correction_note(first)


class Counting(Waking):
    """Adds its number of passes, so that none can be continued from another."""

    passes = 0

    def forward(self, x: Tensor) -> Any:
        self.passes += 1
        return super().forward(x) + 1e-6 * self.passes * x.flatten(1)[:, :CLASSES]


def test_a_model_that_cannot_be_replayed_takes_whole_passes() -> None:
    sweep = _sweep(model=Counting())
    found, measured = _estimates(sweep), _measured(_sweep())
    assert found["first", 0.9] == pytest.approx(measured["first", 0.9], rel=0.2)
    assert any(
        note.startswith("The true passes of the quick scan ran through the whole model: ") for note in sweep.notes
    )


def test_estimates_stand_where_passes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, sweep = _uncorrected(_sweep(), monkeypatch), _sweep()

    def refused(*_: Any) -> Any:
        raise MeasurementFailed("No passes today.")

    monkeypatch.setattr(true_passes, "_measured", refused)
    assert _estimates(sweep) == plain
    assert sweep.notes == ["Estimates were not corrected by true passes: MeasurementFailed: No passes today"]


def _planned(suffixes: dict[str, float]) -> list[PlannedTarget]:
    return [
        cast(PlannedTarget, SimpleNamespace(target=SimpleNamespace(layer=layer), suffix=suffix))
        for layer, suffix in suffixes.items()
    ]


def test_each_layers_largest_estimate_comes_first_within_the_budget() -> None:
    targets = _planned({"a": 1.0, "b": 0.5, "c": 0.1})
    means = {("a", 0.9): 5.0, ("a", 0.5): 4.0, ("b", 0.9): 1.0, ("b", 0.5): 0.02, ("c", 0.9): 0.01}
    chosen = TruePasses.planned(means, targets, 100, budget=10.0)
    assert [(job.index, job.level) for job in chosen.jobs] == [(0, 0.9), (1, 0.9)]
    assert chosen.num_images == 3  # 3 · (1 + 1.01 + 0.51) of 10
    rich = TruePasses.planned(means, targets, 100, budget=1000.0)
    assert [(job.index, job.level) for job in rich.jobs] == [(0, 0.9), (0, 0.5), (1, 0.9)]
    assert rich.num_images == 64
    assert not TruePasses.planned({("c", 0.9): 0.01}, targets, 100, budget=1000.0).jobs


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), count=st.integers(1, 20), heavy=st.floats(0.1, 3))
def test_samples_stand_for_all_images(seed: int, count: int, heavy: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    shares = (heavy * torch.randn(20, generator=generator, dtype=torch.float64)).exp()
    sample = draw_sample(shares * torch.rand(4, 1, generator=generator, dtype=torch.float64), count)
    assert sample.indices.tolist() == sorted(set(sample.indices.tolist()))
    assert len(sample.indices) == count
    assert bool((sample.weights >= 1).all())
    assert bool(sample.noise.isfinite().all())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), images=st.integers(1, 12), factor=st.floats(0.05, 20))
def test_composites_are_finite_and_exact_where_all_images_were_passed(seed: int, images: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    estimated = torch.rand(8, images, generator=generator, dtype=torch.float64) + 0.01
    truth = estimated * factor * (1 + torch.rand(8, 1, generator=generator, dtype=torch.float64))
    sample = draw_sample(estimated, images)
    rows = torch.tensor([0, 2, 3, 5, 6, 7])
    found = composite(estimated.mean(dim=1), rows, truth[rows], sample, images)
    assert bool(found.isfinite().all())
    assert bool((found >= 0).all())
    torch.testing.assert_close(found[rows], truth[rows].mean(dim=1), rtol=1e-6, atol=0)
    left = torch.tensor([1, 4])  # the trend keeps their order
    assert found[left].argsort().tolist() == estimated[left].mean(dim=1).argsort().tolist()


def test_a_bound_of_the_same_scores_in_another_order() -> None:
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    most = largest_divergence(scores)
    before = scores.log_softmax(1)
    for seed in range(200):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        moved = (before.exp() * (before - before[:, order])).sum(dim=1)
        assert bool((moved <= most + 1e-9).all())
