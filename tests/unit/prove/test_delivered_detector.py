"""Int8 files of a detector with one output of boxes and scores: what it finds, and from which score on."""

import contextlib
import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.testing import assert_array_equal
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.ops import batched_nms

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.metrics.detection import AGREEMENT_50, OBJECTS
from senseapp.networks.onnx.metadata import told_of
from senseapp.networks.sources.load import load_model
from senseapp.prove.deploy import Deployed, deploy, original_source
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.search_images import with_held_out
from senseapp.records.deployment import DeploySettings
from senseapp.records.measurement import RunResult, change_in
from senseapp.records.spec import ModelSpec, RunSpec, SensitivitySpec
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.rounding.qdq import QdqFiles
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


def opened(file: Path, *, labelled: bool = True, held_out: bool = True) -> ScheduleEvaluator:
    model = load_model(ModelSpec(library="onnx", checkpoint=str(file), task="detection"))
    few = images(range(2), labelled=False)
    profile = MeasurementContext.prepare(model.module, few, task=DETECTION).profile
    spec = RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(file), task="detection"),
        sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0,)),
    )
    result = RunResult(spec=spec, profile=profile, metric="detection_kl", baseline={}, measurements=(), num_samples=32)
    curves = images(range(32), labelled=labelled)
    proof = images(range(100, 124), labelled=labelled) if held_out else curves
    parts = ProofImages(curves=curves, proof=proof, note="")
    return with_held_out(ScheduleEvaluator.open(result, model=model, images=parts))


def delivered(file: Path, **images_of: bool) -> Deployed:
    evaluator = opened(file, **images_of)
    return deploy(evaluator, original_source(evaluator, evaluator.runtime("onnxruntime")), DeploySettings(kind="int8"))


def detections(content: bytes, shown: TensorImages) -> list[np.ndarray]:
    """Return the detections of each image, (n, 6) as score, class and corners, by onnxruntime and torchvision alone."""
    session, found = onnxruntime.InferenceSession(content), []
    for image in shown.images:
        columns = torch.from_numpy(session.run(None, {"images": image[None].numpy()})[0][0]).T  # (A, 4 + K)
        centres, sides, scores = columns[:, :2], columns[:, 2:4], columns[:, 4:]
        anchor, label = (scores > 0.02).nonzero().T
        boxes, values = torch.cat([centres - sides / 2, centres + sides / 2], 1)[anchor], scores[anchor, label]
        kept = batched_nms(boxes, values, label, 0.5)
        found.append(torch.cat([values[kept, None], label[kept, None], boxes[kept]], 1).double().numpy())
    return found


def agreement(before: list[np.ndarray], after: list[np.ndarray]) -> float:
    """Return the average precision at half an overlap that pycocotools finds, boxes of a score from .3 on the truth."""
    sure = [each[each[:, 0] >= 0.3] for each in before]
    boxes = [(image, row) for image, rows in enumerate(sure) for row in rows.tolist()]
    truth = COCO()
    truth.dataset = {
        "images": [{"id": image} for image in range(len(before))],
        "categories": [{"id": label} for label in range(4)],
        "annotations": [
            {"id": 1 + place, "image_id": image, "category_id": int(row[1]), "iscrowd": 0,
             "bbox": [row[2], row[3], row[4] - row[2], row[5] - row[3]], "area": (row[4] - row[2]) * (row[5] - row[3])}
            for place, (image, row) in enumerate(boxes)
        ],
    }  # fmt: skip
    rows = [
        {"image_id": image, "category_id": int(row[1]), "score": row[0],
         "bbox": [row[2], row[3], row[4] - row[2], row[5] - row[3]]}
        for image, found in enumerate(after) for row in found.tolist()
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluated = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return float(evaluated.stats[1])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("senseapp.prove.file_times._TURNS_OF_A_ROUND", 1)
    monkeypatch.setattr("senseapp.prove.file_times.installed_runtimes", lambda: ())
    monkeypatch.setattr(OPERATIONS.__class__, "default_int8", lambda *_: None)


@pytest.mark.parametrize("labelled", [True, pytest.param(False, marks=pytest.mark.wide)])
def test_the_int8_file_finds_what_the_original_finds_from_a_score_of_its_own(file: Path, labelled: bool) -> None:
    found = delivered(file, labelled=labelled)
    own, original = (found.record.figures[name].score_threshold for name in ("file", "original"))
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
    assert found.record.notes[-1].startswith("All else in the file is as it was uploaded")
    kept = change_in(found.record.figures["file"].changes, OBJECTS.name)
    assert kept is not None
    assert kept.value > 0.9


@pytest.mark.wide
def test_the_agreement_that_is_told_is_that_of_images_that_chose_nothing(file: Path) -> None:
    """The run held out none: a share of its images is, and pycocotools finds the same figure on these."""
    apart = opened(file, held_out=False).images
    assert sorted((*apart.curves.names, *apart.proof.names)) == sorted(images(range(32), labelled=True).names)
    found = delivered(file, held_out=False)
    assert found.held_out
    assert not apart.held_out  # of a schedule, as the layers were measured on all images
    assert found.record.images == len(apart.proof) == 9
    assert any("9 of the run's 32 images; nothing was fitted to these" in note for note in found.record.notes)
    expected = agreement(detections(file.read_bytes(), apart.proof), detections(found.content, apart.proof))
    told = change_in(found.record.figures["file"].changes, AGREEMENT_50.name)
    assert told is not None
    assert told.value == pytest.approx(expected, abs=1e-6)
    assert expected > 0.9


def test_a_file_that_finds_nothing_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QdqFiles, "_behind_the_last_weights", lambda _self: set())
    with pytest.raises(InvalidSpec, match="keeps none of the original's answers"):
        delivered(file)


def test_metadata_that_were_there_stay(file: Path) -> None:
    model = onnx.load(file)
    model.metadata_props.add(key="stride", value="32")
    content = model.SerializeToString()
    told = OPERATIONS.described(content, told_of(preprocessing=None, class_names=(), thresholds=(0.25, 0.3)))
    after = onnx.load_from_string(told)
    assert {each.key for each in after.metadata_props} == {
        "stride", "senseapp.score_threshold", "senseapp.original_score_threshold"
    }  # fmt: skip
    assert_array_equal(after.graph.SerializeToString(), model.graph.SerializeToString())
