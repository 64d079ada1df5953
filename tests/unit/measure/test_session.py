"""A run from its settings to its result, on the demo that ships with the project."""

import math
from dataclasses import replace

import pytest
import torch

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidInput
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick import scan
from senseapp.measure.session import Session
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_models import small_network

CASES: list[tuple[CompressionConfig, float]] = [
    (SparsityConfig(), 0.5),
    (PruningConfig(), 0.3),
    (QuantizationConfig(), 4.0),
]
NUM_SAMPLES = 40


def _spec(**settings: object) -> RunSpec:
    given = {"levels": (0.5,), "num_samples": NUM_SAMPLES, **settings}
    return RunSpec(sensitivity=SensitivitySpec(**given))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=CASES, ids=["sparsity", "pruning", "quantization"])
def outcome(request: pytest.FixtureRequest) -> tuple[Session, list[LayerMeasurement], RunResult]:
    told: list[str] = []
    compression, level = request.param
    session = Session.open(_spec(compression=compression, levels=(level,)), progress=told.append)
    assert told[0] == "Loading the model"
    estimates, measurements = list(session.estimates()), list(session.measure())
    return session, measurements, session.result(measurements, estimates, seconds=1.5)


def test_every_layer_has_a_row(outcome: tuple[Session, list[LayerMeasurement], RunResult]) -> None:
    session, measurements, result = outcome
    applicable = [item for item in measurements if item.status is not Status.NOT_APPLICABLE]
    assert len(applicable) == session.targets
    assert min(item.seconds for item in applicable) > 1e-5  # those of its work: reading a clock twice takes 1e-7
    covered = {member for item in result.measurements for member in item.members}
    assert covered == {layer.name for layer in result.profile.layers}
    assert Status.FAILED not in {item.status for item in result.measurements}


def test_the_result_knows_how_it_was_made(outcome: tuple[Session, list[LayerMeasurement], RunResult]) -> None:
    session, measurements, result = outcome
    assert result.spec == session.spec
    assert (result.metric, result.precision, result.method) == ("kl", "fp32", "replay")
    assert any("40 images cannot show losses under about 6.6 points" in note for note in result.notes)
    assert result.baseline["top1"] > 0.9
    assert result.num_samples == NUM_SAMPLES
    assert result.has_labels
    corrected = [replace(item, images_passed=3) for item in result.estimates]
    few, all_measured = (session.result(known, corrected).notes for known in (measurements[:1], measurements))
    assert "replaced by measurements on 3 images" in " ".join(few)
    assert "replaced by measurements" not in " ".join(all_measured)
    assert result.environment["micro_batch"] == str(session.layout.micro_batch)
    assert result.measurements == latest(measurements)
    assert 0 < session.predicted_seconds() < math.inf
    assert all(-1 <= value <= 1 for value in result.agreement.values())
    assert result.agreement


def test_json_gives_the_same_result_back(outcome: tuple[Session, list[LayerMeasurement], RunResult]) -> None:
    _, _, result = outcome
    assert loads(dumps(result), RunResult) == result


@pytest.mark.parametrize("seen", [NUM_SAMPLES, 12, 0], ids=["all images", "some images", "none"])
def test_a_quick_run_leaves_the_uncompressed_model_to_its_scan(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the scan sees of it; nothing where it fails."""

    def num_images(_sweep: Sweep) -> int:
        if not seen:
            raise RuntimeError("autograd refuses")
        return seen

    exact = Session.open(_spec())
    session = Session.open(_spec(mode="quick"))
    assert session.baseline == session.result(()).baseline == {}
    monkeypatch.setattr(scan, "num_images", num_images)
    estimates = list(session.estimates())
    assert bool(estimates) == bool(seen)
    assert list(session.measure()) == []
    assert session.result((), estimates).baseline == pytest.approx(exact.baseline, rel=1e-5)


def test_a_quick_run_refuses_labels_that_the_model_does_not_know() -> None:
    images = TensorImages(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 9]))
    with pytest.raises(InvalidInput, match="class indices from 0 to 5, got 0 to 9"):
        Sweep.open(small_network(), images, SensitivitySpec(levels=(0.5,), mode="quick"), task=CLASSIFICATION)
