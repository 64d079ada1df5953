"""Int8 files of a detector with one output of boxes and scores: what it finds, and from which score on."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.metrics.detection import OBJECTS
from senseapp.networks.sources.load import load_model
from senseapp.prove.deploy import Deployed, deploy, original_source
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.proof_images import ProofImages
from senseapp.records.deployment import DeploySettings, RuntimeFigures
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.partly_int8 import PartlyInt8
from senseapp.tasks.detection import DETECTION
from tests.onnx_files import exported
from tests.shapes_detector import DecodedDetector, inputs

pytestmark = pytest.mark.slow
SCALE = 8


def images(numbers: range, *, labelled: bool) -> TensorImages:
    """Return pictures, 512 × 512 pixels from 0 to 1, with their boxes."""
    pictures, targets = inputs(numbers)
    large = (pictures * 0.25 + 0.5).repeat_interleave(SCALE, 2).repeat_interleave(SCALE, 3)
    labels = tuple({**each, "boxes": each["boxes"] * SCALE, "labels": each["labels"] - 1} for each in targets)
    names = tuple(f"{number}.png" for number in numbers)
    return TensorImages(images=large, labels=labels if labelled else None, names=names)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "net.onnx"
    path.write_bytes(exported(DecodedDetector(SCALE, rows=True, extra=True), side=64 * SCALE))
    return path


def delivered(file: Path, *, labelled: bool = True, kind: str = "int8") -> Deployed:
    model = load_model(ModelSpec(library="onnx", checkpoint=str(file), task="detection"))
    few = images(range(2), labelled=False)
    profile = MeasurementContext.prepare(model.module, few, task=DETECTION).profile
    spec = RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(file), task="detection"),
        sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0,)),
    )
    result = RunResult(spec=spec, profile=profile, metric="detection_kl", baseline={}, measurements=(), num_samples=32)
    parts = ProofImages(
        curves=images(range(32), labelled=labelled), proof=images(range(100, 124), labelled=labelled), note=""
    )
    evaluator = ScheduleEvaluator.open(result, model=model, images=parts)
    return deploy(evaluator, original_source(evaluator, evaluator.runtime("onnxruntime")), DeploySettings(kind=kind))


def thresholds(figures: dict[str, RuntimeFigures]) -> tuple[float | None, float | None]:
    return figures["file"].score_threshold, figures["original"].score_threshold


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.prove.file_times._TURNS_OF_A_ROUND", 1)
    monkeypatch.setattr("senseapp.runtimes.onnxruntime.rounding.choice._TRIED", 0)
    monkeypatch.setattr("senseapp.prove.deploy.installed_runtimes", lambda: ())
    monkeypatch.setattr(OPERATIONS.__class__, "own_int8", lambda *_: None)


@pytest.mark.parametrize("labelled", [True, False])
def test_the_int8_file_finds_what_the_original_finds_from_a_score_of_its_own(file: Path, labelled: bool) -> None:
    found = delivered(file, labelled=labelled)
    own, original = thresholds(found.record.figures)
    assert own is not None
    assert original is not None
    assert 0.02 < own < 1
    assert (original == 0.3) is not labelled
    told = onnxruntime.InferenceSession(found.content).get_modelmeta().custom_metadata_map
    assert float(told["senseapp.score_threshold"]) == own
    assert float(told["senseapp.original_score_threshold"]) == original
    sentence = f"from a score of {own:.3f} on in the file, and of {original:.3f} in the original"
    assert any(sentence in note for note in found.record.notes)
    assert sentence in found.record.readme("x.onnx")
    assert any("2 entries of metadata" in note for note in found.record.notes)
    assert found.record.notes[-1].startswith("All else in the file is the uploaded one's")
    kept = change_in(found.record.figures["file"].changes, OBJECTS.name)
    assert kept is not None
    assert kept.value > 0.95


def test_a_file_that_finds_nothing_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartlyInt8, "coarse", ())
    with pytest.raises(InvalidSpec, match="keeps none of the original's answers"):
        delivered(file)


def test_metadata_that_were_there_stay(file: Path) -> None:
    model = onnx.load(file)
    model.metadata_props.add(key="stride", value="32")
    content = model.SerializeToString()
    told = OPERATIONS.described(content, preprocessing=None, class_names=(), thresholds=(0.25, 0.3))
    after = onnx.load_from_string(told)
    assert {each.key for each in after.metadata_props} == {
        "stride", "senseapp.score_threshold", "senseapp.original_score_threshold"
    }  # fmt: skip
    assert_array_equal(after.graph.SerializeToString(), model.graph.SerializeToString())
