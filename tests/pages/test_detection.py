"""A detector with COCO annotations: measured, estimated, scheduled, proven, reported, and opened on each page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch import Tensor
from torchvision.ops import box_iou

from senseapp.cli.main import main
from senseapp.data.demo_pictures import load_shapes
from senseapp.descriptions import SOURCES
from senseapp.metrics import METRICS
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.inputs import DETECTION_DEMO
from senseapp.server.service import Service
from tests import shapes_detector
from tests.pages.conftest import finish, open_layers
from tests.pictures import write_folder
from tests.plain_loop import SPARSITY, sparse_logits

REAL_ENGINE = True

NUM_PICTURES, NUM_MEASURED = 116, 16


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(shapes_detector.SOURCE)


@pytest.mark.wide
@pytest.mark.slow
def test_the_command_line_measures_deploys_and_reports_a_detector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "set", shapes_detector.picture_files(NUM_PICTURES))
    run, file = tmp_path / "run", tmp_path / "detector.onnx"
    given = ["--data", str(folder), "--samples", str(NUM_MEASURED), "--compression", "quantization", "--levels", "8,4"]
    assert main(["analyze", "--model", "shapes/ssd", "--task", "detection", *given, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["deploy", "--run", str(run), "--mode", "int8", "--out", str(file)]) == 0
    deployed = json.loads(capsys.readouterr().out)
    assert file.is_file()
    assert "agreement_map" in json.dumps(deployed)
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert METRICS["detection_kl"].label in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_detector_of_the_demo_is_measured_and_its_page_names_the_most_fragile_layer(
    app: AppTest, service: Service, backend: Backend
) -> None:
    few = SensitivitySpec(levels=(SPARSITY,), num_samples=8, device="cpu")
    run_id = finish(service, backend, replace(DETECTION_DEMO, sensitivity=few))
    result = service.result(run_id)
    assert result.has_labels
    model = load_model(DETECTION_DEMO.model)
    images = load_shapes(model.preprocessing, 8, with_boxes=False).batch(0, 8)
    whole = model.module(images)
    damage = {
        item.layer: divergence(whole, sparse_logits(model.module, item.layer, "weight", images))
        for item in result.measurements
    }
    measured = {
        item.layer: next(change.delta for change in item.changes if change.metric == "detection_kl")
        for item in result.measurements
    }
    assert measured == pytest.approx(damage, rel=1e-3)
    open_layers(app, run_id)
    worst = max(damage, key=damage.__getitem__)
    told = [each.value for kind in ("markdown", "caption", "info", "success", "warning") for each in getattr(app, kind)]
    assert any("Most fragile" in text and worst in text for text in told)


def divergence(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """Return the mean over images of KL of the classes and score times (1 - IoU), summed over all boxes."""
    p, q = (each["softmax_logits"].double().log_softmax(dim=2) for each in (before, after))
    classes = (p.exp() * (p - q)).sum(dim=(1, 2))
    score = p.exp()[..., 1:].amax(dim=2)
    overlaps = [
        box_iou(one.double(), other.double()).diagonal()
        for one, other in zip(before["boxes"], after["boxes"], strict=True)
    ]
    return float((classes + (score * (1 - torch.stack(overlaps))).sum(dim=1)).mean())
