"""Large estimates of the quick scan: bounded, and replaced by true passes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import MeasurementFailed
from senseapp.core.texts import plural
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick import true_passes
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.quick.true_passes import checked_estimates, correction_note
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

COUNT, CLASSES = 48, 5
SHARES = (("a", 1.0), ("b", 0.5), ("c", 0.1))


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
        patch.setattr(true_passes, "_LARGE", float("inf"))
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
    layers = plural(len({layer for layer, _ in passed}), "layer")
    assert correction_note(estimates) == (
        f"Large estimates of {layers} were replaced by measurements on {COUNT} images.",
    )
    assert correction_note(sweep.measure()) == ()


@pytest.mark.parametrize(
    ("compression", "levels"),
    [(SparsityConfig(), (0.5, 0.9)), (QuantizationConfig(), (3, 2)), (PruningConfig(), (0.3, 0.6))],
    ids=["sparsity", "quantization", "pruning"],
)
def test_estimates_are_finite_repeatable_and_say_so(
    compression: CompressionConfig, levels: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(true_passes, "_LARGE", 1e-3)
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


def test_each_layers_largest_estimate_comes_first_within_the_budget() -> None:
    sweep = cast(Any, _sweep(levels=(0.5, 0.9)))
    sweep.planned = [SimpleNamespace(target=SimpleNamespace(layer=layer), suffix=share) for layer, share in SHARES]
    means = {("a", 0.9): 5.0, ("a", 0.5): 4.0, ("b", 0.9): 1.0, ("b", 0.5): 0.02, ("c", 0.9): 0.01}
    found = {key: torch.full((100,), mean, dtype=torch.float64) for key, mean in means.items()}
    assert checked_estimates(sweep, found, 10.0) == ([("a", 0.9), ("b", 0.9)], 3)  # 3 · (1 + 1.01 + 0.51) of 10
    assert checked_estimates(sweep, found, 1000.0) == ([("a", 0.9), ("b", 0.9), ("a", 0.5)], 64)
    assert checked_estimates(sweep, {("c", 0.9): found["c", 0.9]}, 1000.0)[0] == []
