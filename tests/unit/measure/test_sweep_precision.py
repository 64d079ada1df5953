"""Which layout and precision a run takes, and that it says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.descriptions import CompressionConfig
from senseapp.measure import context, plan, precision
from senseapp.measure.context import MeasurementContext
from senseapp.measure.plan import Layout
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.trace import CallTrace, trace_calls
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_models import images_for, small_network


class Clock:
    """Replaces the timing of passes: seconds by precision."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def __call__(self, prepared: MeasurementContext) -> float:
        return self.seconds[prepared.layout.precision]


@pytest.fixture
def half_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_product_gain", lambda _device: 4.0)
    monkeypatch.setattr(precision, "_seconds", Clock({"fp32": 3.0, "bf16": 1.0}))


@pytest.fixture
def half_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_product_gain", lambda _device: 4.0)
    monkeypatch.setattr(precision, "_seconds", Clock({"fp32": 1.0, "bf16": 1.0}))


def _open(
    compression: CompressionConfig | None = None, levels: tuple[float, ...] = (0.5,), *, mode: str = "exact"
) -> Sweep:
    spec = SensitivitySpec(
        compression=compression or SparsityConfig(),
        levels=levels,
        precision="auto",
        mode=mode,  # type: ignore[arg-type]
    )
    return Sweep.open(small_network(), images_for(), spec, task=CLASSIFICATION)


@pytest.mark.usefixtures("half_is_slow")
@pytest.mark.parametrize("mode", ["exact", "quick"])
def test_auto_keeps_float32_where_bfloat16_is_not_faster(mode: str) -> None:
    sweep = _open(mode=mode)
    assert sweep.context.layout.precision == "fp32"
    assert "Precision auto kept float32: bfloat16 is 1.0 times as fast here, which is not worth it." in sweep.notes


def test_no_pass_is_timed_where_products_gain_nothing_from_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: 1.0, torch.bfloat16: 2.0}
    monkeypatch.setattr(precision, "_product_seconds", lambda _device, dtype: seconds[dtype])
    monkeypatch.setattr(precision, "_seconds", lambda _prepared: pytest.fail("timed"))
    sweep = _open()
    assert sweep.context.layout.precision == "fp32"
    assert "Precision auto kept float32: matrix products in bfloat16 are 0.5 times as fast here." in sweep.notes


@pytest.mark.usefixtures("half_is_fast")
@pytest.mark.parametrize(("agreement", "taken"), [(0.99, "bf16"), (0.9, "fp32"), (float("nan"), "fp32")])
def test_auto_takes_bfloat16_for_measurements_only_if_it_ranks_layers_alike(
    agreement: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[list[float], list[float]]] = []

    def spearman(exact: list[float], rounded: list[float]) -> float:
        compared.append((exact, rounded))
        return agreement

    monkeypatch.setattr(precision, "spearman", spearman)
    sweep = _open(levels=(0.3, 0.6, 0.9))
    assert sweep.context.layout.precision == taken
    assert f"(Spearman {agreement:.2f}" in sweep.notes[-1]
    ((exact, rounded),) = compared
    assert len(exact) == len(rounded) == len(sweep.planned)
    assert exact != rounded  # measured in two precisions indeed
    assert exact == pytest.approx(rounded, rel=0.2, abs=1e-3)


@pytest.mark.usefixtures("half_is_fast")
@pytest.mark.parametrize(
    ("compression", "levels", "taken"),
    [
        (SparsityConfig(), (0.5,), "bf16"),
        (QuantizationConfig(), (4, 2), "bf16"),
        (QuantizationConfig(), (8, 2), "fp32"),  # what 8 bits change is as small as bfloat16's own rounding
    ],
)
def test_auto_takes_bfloat16_for_estimates_that_its_rounding_cannot_hide(
    compression: CompressionConfig, levels: tuple[float, ...], taken: str
) -> None:
    sweep = _open(compression, levels, mode="quick")
    assert sweep.context.layout.precision == taken
    assert ("took bfloat16 for the estimates" in sweep.notes[-1]) == (taken == "bf16")


@pytest.mark.usefixtures("half_is_fast")
def test_estimates_in_bfloat16_are_near_those_in_float32() -> None:
    half = {item.key: item.change("kl") for item in quick_scan(_open(levels=(0.5, 0.9), mode="quick"))}
    spec = SensitivitySpec(levels=(0.5, 0.9), mode="quick")
    single = {
        item.key: item.change("kl")
        for item in quick_scan(Sweep.open(small_network(), images_for(), spec, task=CLASSIFICATION))
    }
    assert half.keys() == single.keys()
    for key, change in single.items():
        other = half[key]
        assert change is not None
        assert other is not None
        assert other.delta == pytest.approx(change.delta, rel=0.1, abs=1e-4)


@pytest.fixture
def never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_settings: object) -> float:
        raise AssertionError("a quick run has no time to try layouts")

    monkeypatch.setattr(plan, "_seconds_per_image", refuse)
    monkeypatch.setattr(MeasurementContext, "check_replay", refuse)


@pytest.mark.usefixtures("never_tried")
def test_a_quick_run_takes_the_usual_layout_untried() -> None:
    spec = SensitivitySpec(levels=(0.5,), mode="quick")
    sweep = Sweep.open(small_network(), images_for(), spec, task=CLASSIFICATION)
    assert sweep.context.layout.channels_last
    assert list(quick_scan(sweep))


def _timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[bool, float], by_size: dict[int, float]) -> list[int]:
    sizes: list[int] = []

    def seconds_per_image(_model: nn.Module, batch: torch.Tensor, order: bool, _device: torch.device) -> float:
        sizes.append(len(batch))
        return seconds[order] * by_size.get(len(batch), 1.0)

    monkeypatch.setattr(plan, "_seconds_per_image", seconds_per_image)
    return sizes


@pytest.mark.parametrize(
    ("last", "first", "channels_last"),
    [(1.0, 2.0, True), (1.0, 1.0, True), (1.0, 0.95, True), (1.0, 0.9, False)],
)
def test_channels_last_is_given_up_only_for_a_clear_gain(
    last: float, first: float, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _timed(monkeypatch, {True: last, False: first}, {})
    prepared = MeasurementContext.prepare(small_network(), images_for(), task=CLASSIFICATION)
    prepared.settle_layout(most=16, forwards=1e6, precision="fp32")
    assert prepared.layout.channels_last == channels_last


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the order is known for oneDNN only")
@pytest.mark.parametrize(("levels", "tried"), [(10, False), (100, True)])
def test_a_run_that_a_trial_would_lengthen_takes_the_usual_layout(
    levels: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = _timed(monkeypatch, {True: 1.0, False: 2.0}, {})
    images = images_for(32)
    spec = SensitivitySpec(levels=tuple(level / (levels + 1) for level in range(1, levels + 1)))
    sweep = Sweep.open(small_network(), images, spec, task=CLASSIFICATION)
    # Six layers cost half a pass each on average; two orders are tried by two passes over four images each.
    assert len(sweep.planned) == 6
    assert (0.01 * 0.5 * 6 * levels * len(images) > 16) is tried
    assert bool(sizes) is tried
    assert sweep.context.layout.channels_last


def test_the_fastest_micro_batch_is_taken_where_there_is_time_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_for()
    prepared = MeasurementContext.prepare(small_network(), images, task=CLASSIFICATION)
    base = plan.usual_layout(
        prepared.trace, most=len(images), channels_last=prepared.channels_last, device=prepared.device
    ).micro_batch
    sizes = _timed(monkeypatch, {True: 1.0, False: 2.0}, {base // 2: 0.5})
    prepared.settle_layout(most=len(images), forwards=1e6, precision="fp32")
    assert prepared.layout == Layout(channels_last=True, micro_batch=base // 2)
    assert set(sizes[4:]) == {base, base // 2}  # after two turns of two orders


class _RegardsRows(nn.Module):
    """Takes the output of a convolution for one row per image in memory, which it is not in channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 36, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.conv(x).view(len(x), -1))
        return scores


@pytest.mark.parametrize("levels", [1, 400])
def test_a_network_that_cannot_run_in_channels_last_is_measured_in_the_other_order(levels: int) -> None:
    model, images = _RegardsRows().eval(), images_for(32, size=8)
    with pytest.raises(RuntimeError, match="view size"):
        model(images.images.contiguous(memory_format=torch.channels_last))
    spec = SensitivitySpec(levels=tuple(0.1 + 0.8 * level / levels for level in range(levels)))
    sweep = Sweep.open(model, images, spec, task=CLASSIFICATION)
    assert not sweep.context.layout.channels_last
    assert all(item.status is Status.MEASURED for item, _ in zip(sweep.measure(), range(4), strict=False))


@pytest.mark.parametrize(("order", "passes"), [(True, 1), (False, 2)])
def test_a_layout_that_was_watched_is_not_watched_again(
    order: bool, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[torch.Tensor] = []

    def counted(model: nn.Module, sample: torch.Tensor) -> CallTrace:
        watched.append(sample)
        return trace_calls(model, sample)

    monkeypatch.setattr(context, "trace_calls", counted)
    images = images_for()
    prepared = MeasurementContext.prepare(small_network(), images, task=CLASSIFICATION)
    prepared.take(Layout(channels_last=order, micro_batch=4))
    assert len(watched) == passes
    assert prepared.model.stem.weight.is_contiguous(memory_format=torch.channels_last) is order  # type: ignore[union-attr, operator]
    assert prepared.batches(0, 4)[0].is_contiguous(memory_format=torch.channels_last) is order
