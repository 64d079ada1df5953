"""Tasks of dense outputs and of boxes from outside: analysed, estimated, scheduled, proven, deployed and shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.cli.main import main
from senseapp.descriptions import SOURCES
from senseapp.metrics import METRICS
from senseapp.prove.prove import validate
from senseapp.records.measurement import Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from senseapp.tasks import TASKS, Task
from tests import toy_detection, toy_segmentation
from tests.cases import first_of
from tests.pages.conftest import finish, open_page
from tests.pictures import write_folder

TOYS = [
    pytest.param(toy_segmentation, toy_segmentation.SEGMENTATION, "toy_pixel_kl", "toy_miou", id="segmentation"),
    pytest.param(toy_detection, toy_detection.DETECTION, "box_kl", "toy_ap", id="detection"),
]
NUM_PICTURES, NUM_MEASURED = 116, 16


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    for module, task in ((toy_segmentation, toy_segmentation.SEGMENTATION), (toy_detection, toy_detection.DETECTION)):
        TASKS.register(task)
        SOURCES.register(module.SOURCE)


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    return real_backend


@pytest.mark.slow
@pytest.mark.parametrize(("module", "task", "divergence", "share"), TOYS)
def test_it_is_measured_estimated_scheduled_proven_and_shown(
    module: ModuleType,
    task: Task,
    divergence: str,
    share: str,
    app: AppTest,
    service: Service,
    backend: Backend,
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "set", module.picture_files(NUM_PICTURES))
    spec = RunSpec(
        model=ModelSpec(library=module.SOURCE.name, name="rectangles", task=task.name),
        data=DataSpec(kind="folder", path=str(folder)),
        sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=NUM_MEASURED, device="cpu"),
    )
    run_id = finish(service, backend, spec)
    result = service.result(run_id)
    assert result.has_labels
    assert all(item.status is Status.MEASURED for item in result.measurements)
    assert result.ranked(0.9, divergence)[0][1].delta > 0
    assert min(result.agreement.values()) > 0.4  # Spearman of three layers
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    proof = validate(result, schedule, repair=True, data_roots=(tmp_path,)).result
    proven = {change.metric: change for change in proof.changes}
    assert proven[share].num_samples == NUM_PICTURES - NUM_MEASURED
    assert proven[share].ci_low <= proven[share].delta <= proven[share].ci_high
    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize(("module", "task", "divergence", "share"), first_of(TOYS))
def test_the_command_line_deploys_and_reports_one(
    module: ModuleType,
    task: Task,
    divergence: str,
    share: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write_folder(tmp_path / "set", module.picture_files(NUM_PICTURES))
    run, file = tmp_path / "run", tmp_path / "toy.onnx"
    given = ["--data", str(folder), "--samples", str(NUM_MEASURED), "--compression", "quantization", "--levels", "8,4"]
    model = ["--model", f"{module.SOURCE.name}/rectangles", "--task", task.name]
    assert main(["analyze", *model, *given, "--out", str(run)]) == 0
    capsys.readouterr()
    assert main(["deploy", "--run", str(run), "--mode", "int8", "--out", str(file)]) == 0
    deployed = json.loads(capsys.readouterr().out)
    assert file.is_file()
    figures = deployed["files"]
    assert figures
    assert share in json.dumps(deployed)
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    report = (tmp_path / "report.html").read_text()
    assert f"{module.SOURCE.name}/rectangles" in report
    assert METRICS[divergence].label in report
