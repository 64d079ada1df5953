"""The quick scan's ranking against the measured one, on the demo; four more networks in ``benchmarks/quick_scan``."""

import statistics

import pytest

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.data.load import load_demo_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.session import estimate_agreement
from senseapp.measure.sweep import Sweep
from senseapp.networks.sources.demo import load_demo_model
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

pytestmark = pytest.mark.slow

NUM_IMAGES = 256


def _agreement(compression: CompressionConfig, levels: tuple[float, ...]) -> list[float]:
    spec = SensitivitySpec(compression=compression, levels=levels)
    images = load_demo_images("heldout").subset(range(NUM_IMAGES))
    sweep = Sweep.open(load_demo_model().module, images, spec, task=CLASSIFICATION)
    return list(estimate_agreement(quick_scan(sweep), sweep.measure()).values())


def test_rank_correlation_with_measured_kl() -> None:
    found = _agreement(SparsityConfig(), (0.5, 0.7, 0.9)) + _agreement(QuantizationConfig(), (4, 3, 2))
    assert len(found) == 6
    assert statistics.median(found) >= 0.97
    assert min(found) >= 0.92


@pytest.mark.wide
def test_pruning_groups() -> None:
    assert min(_agreement(PruningConfig(), (0.3, 0.5))) >= 0.9
