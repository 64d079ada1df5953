"""Uploads of annotated pictures are surveyed and previewed as their task reads them."""

from dataclasses import replace

import pytest

from senseapp.descriptions import SOURCES
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec, RunSpec
from senseapp.server.service import Service
from senseapp.tasks import TASKS
from tests.pages.conftest import texts, wait_for_card
from tests.pictures import write_folder, write_zip
from tests.toy_rectangles import SOURCE, picture_files, scene

REAL_ENGINE = True
SEGMENTATION = TASKS["segmentation"]


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(SOURCE)


def test_an_archive_is_surveyed_and_previewed(backend, tmp_path):
    archive = write_zip(tmp_path / "set.zip", picture_files(6))
    data = DataSpec(kind="archive", path=str(archive))
    model = ModelSpec(library=SOURCE.name, name="rectangles", task=SEGMENTATION.name)
    service = Service(backend)
    survey = service.inputs.survey_images(data, model)
    assert (survey.layout, survey.num_images, survey.proposal) == ("annotations", 6, None)
    report = service.inputs.preview(RunSpec(model=model, data=data))
    assert "6 pictures with masks." in report.notes
    for number, picture in zip((0, 2, 3, 5), report.pictures, strict=True):  # spread evenly over the six
        names = {("background", "red", "green")[box[0]] for box in scene(number).rectangles}
        assert names <= set(picture.label.replace(",", "").split())
        assert picture.prediction
    without = service.inputs.preview(RunSpec(model=model, data=replace(data, labels="none")))
    assert len(without.pictures) == 4
    assert not any(picture.label for picture in without.pictures)


def test_analyze_says_what_it_found(app, service, tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "set", picture_files(5))
    monkeypatch.setenv("SENSEAPP_DATA_ROOTS", str(tmp_path))
    app.run()
    app.segmented_control(key="analyze.model.source").set_value(SOURCE.label).run()
    app.selectbox(key="analyze.model.task").set_value(SEGMENTATION.name).run()
    app.button_group(key="analyze.data.source").set_value("Server folder").run()
    app.text_input(key="analyze.data.folder").set_value(str(folder)).run()
    wait_for_card(app)
    assert not app.exception
    assert "5 images · with masks" in texts(app)
    assert "There are no labels" not in texts(app)
    labels = app.selectbox(key=f"analyze.data.labels.{folder}")
    assert labels.options[0] == SEGMENTATION.label_places
    labels.set_value(WITHOUT_LABELS).run()
    assert "5 images" in texts(app)
    assert "with masks" not in texts(app)
