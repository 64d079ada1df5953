"""The quick scan on ImageNet weights: the layers that a tangent gets wrong, at 90 % zeros, on few photographs."""

from __future__ import annotations

import pytest

from benchmarks.real.network import load_network
from benchmarks.real.photographs import tensors
from senseapp.compressions import SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.measure.quick import true_passes
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

pytestmark = pytest.mark.slow

LAYERS = ("blocks.5.3.conv_pwl", "blocks.6.0.*", "conv_head", "classifier")


def _sweep() -> Sweep:
    spec = SensitivitySpec(compression=SparsityConfig(), levels=(0.9,), layers=LAYERS)
    return Sweep.open(load_network(), TensorImages(tensors(24)), spec, task=CLASSIFICATION)


@pytest.mark.wide
def test_layers_that_wake_silent_units_are_no_longer_underestimated(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = _sweep()
    measured = {item.layer: item.changes[0].delta for item in sweep.measure() if item.change("kl")}
    after = {item.layer: item.changes[0].delta for item in quick_scan(sweep)}
    monkeypatch.setattr(true_passes, "_LARGE", float("inf"))
    before = {item.layer: item.changes[0].delta for item in quick_scan(sweep)}
    worst = "blocks.6.0.conv_pwl"
    assert before[worst] < measured[worst] / 3  # by the tangent alone
    assert measured[worst] / 2 < after[worst] < measured[worst] * 2
    assert max(after, key=lambda layer: after[layer]) == max(measured, key=lambda layer: measured[layer]) == worst
