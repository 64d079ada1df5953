"""Tasks from outside whose pictures are annotated: uploads are surveyed and previewed as the task reads them."""

from __future__ import annotations

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

REAL_ENGINE = True

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
