"""Which layout and precision a run takes, and that it says so."""

import pytest
import torch
from torch import nn

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.descriptions import CompressionConfig
from senseapp.measure import plan
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_models import images_for, small_network


@pytest.fixture
def half_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: 4.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(plan, "product_seconds", lambda _device, dtype: seconds[dtype])


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


def test_auto_keeps_float32_where_products_gain_nothing_from_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: 1.0, torch.bfloat16: 2.0}
    monkeypatch.setattr(plan, "product_seconds", lambda _device, dtype: seconds[dtype])
    sweep = _open(mode="quick")
    assert sweep.context.layout.precision == "fp32"
    assert "Precision auto kept float32: matrix products in bfloat16 are 0.5 times as fast here." in sweep.notes


@pytest.mark.usefixtures("half_is_fast")
@pytest.mark.parametrize("mode", ["exact", "quick"])
@pytest.mark.parametrize(
    ("compression", "levels", "taken"),
    [
        (SparsityConfig(), (0.5,), "bf16"),
        (QuantizationConfig(), (4, 2), "bf16"),
        (QuantizationConfig(), (8, 2), "fp32"),  # what 8 bits change is as small as bfloat16's own rounding
    ],
)
def test_auto_takes_bfloat16_for_changes_that_its_rounding_cannot_hide(
    compression: CompressionConfig, levels: tuple[float, ...], taken: str, mode: str
) -> None:
    sweep = _open(compression, levels, mode=mode)
    assert sweep.context.layout.precision == taken
    assert ("took bfloat16" in sweep.notes[-1]) == (taken == "bf16")


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


def test_a_run_takes_the_order_that_is_quick_on_a_processor() -> None:
    sweep = _open(mode="quick")
    assert sweep.context.layout.channels_last is torch.backends.mkldnn.is_available()
    assert list(quick_scan(sweep))


class _RegardsRows(nn.Module):
    """Takes the output of a convolution for one row per image in memory, which it is not in channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 36, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.conv(x).view(len(x), -1))
        return scores


def test_a_network_that_cannot_run_in_channels_last_is_measured_in_the_other_order() -> None:
    model, images = _RegardsRows().eval(), images_for(32, size=8)
    with pytest.raises(RuntimeError, match="view size"):
        model(images.images.contiguous(memory_format=torch.channels_last))
    sweep = Sweep.open(model, images, SensitivitySpec(levels=(0.5,)), task=CLASSIFICATION)
    assert not sweep.context.layout.channels_last
    assert all(item.status is Status.MEASURED for item in sweep.measure())
