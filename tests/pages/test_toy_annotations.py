"""Tasks from outside whose pictures are annotated: uploads are surveyed and previewed as the task reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.descriptions import SOURCES
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.tasks import TASKS, Task
from tests import toy_detection, toy_segmentation
from tests.pages.conftest import ScriptedInputs, wait_for_card
from tests.pictures import write_folder, write_zip
from tests.toy_rectangles import scene

ROOT = Path(__file__).parents[2]
TOYS = [
    (toy_segmentation, toy_segmentation.SEGMENTATION, "masks"),
    (toy_detection, toy_detection.DETECTION, "boxes"),
]


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    for module, task, _ in TOYS:
        TASKS.register(task)
        SOURCES.register(module.SOURCE)


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    return real_backend


@pytest.mark.parametrize(("module", "task", "words"), TOYS)
def test_an_archive_is_surveyed_and_previewed(
    module: ModuleType, task: Task, words: str, backend: Backend, tmp_path: Path
) -> None:
    archive = write_zip(tmp_path / "set.zip", module.picture_files(6))
    data = DataSpec(kind="archive", path=str(archive))
    model = ModelSpec(library=module.SOURCE.name, name="rectangles", task=task.name)
    service = Service(backend)
    survey = service.inputs.survey_images(data, model)
    assert (survey.layout, survey.num_images, survey.proposal) == ("annotations", 6, None)
    report = service.inputs.preview(RunSpec(model=model, data=data))
    assert f"6 pictures with {words}." in report.notes
    for number, picture in zip((0, 2, 3, 5), report.pictures, strict=True):  # spread evenly over the six
        names = {("background", "red", "green")[box[0]] for box in scene(number).rectangles}
        assert names <= set(picture.label.replace(",", "").split())
        assert picture.prediction
    without = service.inputs.preview(
        RunSpec(model=model, data=DataSpec(kind="archive", path=str(archive), labels="none"))
    )
    assert len(without.pictures) == 4
    assert not any(picture.label for picture in without.pictures)


@pytest.mark.parametrize(("module", "task", "words"), TOYS)
def test_analyze_says_what_it_found(
    module: ModuleType, task: Task, words: str, app: AppTest, service: Service, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = write_folder(tmp_path / "set", module.picture_files(5))
    monkeypatch.setenv("SENSEAPP_DATA_ROOTS", str(tmp_path))
    scripted = ScriptedInputs.preview  # the task shows no metric in a preview
    monkeypatch.setattr(ScriptedInputs, "preview", lambda self, spec: replace(scripted(self, spec), score=None))
    app.run()
    app.segmented_control(key="analyze.model.source").set_value(module.SOURCE.label).run()
    app.selectbox(key="analyze.model.task").set_value(task.name).run()
    app.button_group(key="analyze.data.source").set_value("Server folder").run()
    app.text_input(key="analyze.data.folder").set_value(str(folder)).run()
    wait_for_card(app)
    assert not app.exception
    said = " ".join(each.value for each in (*app.caption, *app.markdown))
    assert f"5 images · with {words}" in said
    assert "There are no labels" not in said
    labels = app.selectbox(key=f"analyze.data.labels.{folder}")
    assert labels.options[0] == task.label_places
    assert ("The file boxes.json" in labels.options) == (words == "boxes")
    labels.set_value(WITHOUT_LABELS).run()
    said = " ".join(each.value for each in (*app.caption, *app.markdown))
    assert "5 images" in said
    assert "with masks" not in said


ENTRY_POINTS = """
[senseapp.tasks]
segmentation = tests.toy_segmentation:SEGMENTATION
detection = tests.toy_detection:DETECTION
"""
CODE = """
import json, sys
from senseapp.records.spec import DataSpec, ModelSpec
named = [ModelSpec(task=task).task for task in ("toy_segmentation", "toy_detection")]
loaded = "torch" in sys.modules
from senseapp.data.pictures import survey_images
from senseapp.tasks import TASKS
layouts = [
    survey_images(DataSpec(kind="folder", path=path), num_classes=3, task=TASKS[task]).layout
    for task, path in zip(named, sys.argv[1:])
]
print(json.dumps([loaded, layouts]))
"""


@pytest.mark.wide
@pytest.mark.slow
def test_each_is_a_file_and_an_entry_point_outside_of_the_package(tmp_path: Path) -> None:
    installed = tmp_path / "toys-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    folders = [str(write_folder(tmp_path / task.name, module.picture_files(3))) for module, task, _ in TOYS]
    found = subprocess.run(
        [sys.executable, "-c", CODE, *folders],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == [False, ["annotations", "annotations"]]
