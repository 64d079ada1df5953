"""Uploads of annotated pictures are surveyed and previewed as their task reads them."""

from dataclasses import replace

import pytest

from senseapp.app.analyze.blocks import images_line
from senseapp.descriptions import SOURCES
from senseapp.records.spec import WITHOUT_LABELS, DataSpec, ModelSpec, RunSpec
from senseapp.server.inputs import DETECTION_DEMO, Inputs
from senseapp.server.service import Service
from senseapp.tasks import TASKS
from tests.detector_exports import shape_pictures
from tests.pages.conftest import ScriptedInputs, texts, wait_for_card
from tests.pictures import png, write_folder, write_zip
from tests.toy_rectangles import SOURCE, picture_files, scene

REAL_ENGINE = True
SEGMENTATION = TASKS["segmentation"]


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(SOURCE)


def test_an_archive_is_surveyed_and_previewed(backend, tmp_path):
    data = DataSpec(kind="archive", path=str(write_zip(tmp_path / "set.zip", picture_files(6))))
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


def test_boxes_of_classes_that_no_output_is_have_a_way_out_that_is_on_the_page(app, tmp_path, monkeypatch):
    box = "<bndbox><xmin>2</xmin><ymin>2</ymin><xmax>8</xmax><ymax>9</ymax></bndbox>"
    square = f"<annotation><object><name>square</name>{box}</object></annotation>".encode()
    files = {f"{number}{end}": file for number in range(12) for end, file in ((".png", png(number)), (".xml", square))}
    folder = write_folder(tmp_path / "set", files)
    monkeypatch.setenv("SENSEAPP_DATA_ROOTS", str(tmp_path))
    monkeypatch.setattr(ScriptedInputs, "preview", Inputs.preview)
    wait_for_card(app.run())
    app.button_group(key="analyze.model.demo").set_value(DETECTION_DEMO.model.title).run()
    app.button_group(key="analyze.data.source").set_value("Server folder").run()
    app.text_input(key="analyze.data.folder").set_value(str(folder)).run()
    labels = wait_for_card(app).selectbox(key=f"analyze.data.labels.{folder}")
    (error,) = (each.value for each in app.error)
    assert f"no reading of the classes fits. Choose “{labels.options[-1]}” under “{labels.label}”" in error
    assert "set, 12 images" in texts(app)
    assert images_line(DataSpec(kind="archive", path="/a/voc.zip"), 96, None) == "voc.zip"
    assert app.button(key="analyze.run").disabled
    labels.set_value(WITHOUT_LABELS).run()
    assert not wait_for_card(app).button(key="analyze.run").disabled


def test_class_numbers_that_are_only_assumed_are_said_to_be_so_in_each_place(backend, tmp_path):
    data = DataSpec(kind="folder", path=str(shape_pictures(tmp_path, 12, names=("square", "circle", "dot"))))
    report = Service(backend).inputs.preview(RunSpec(model=DETECTION_DEMO.model, data=data))
    assert any(note.startswith("Class numbers are only assumed:") for note in report.notes)
    assert report.reading.facts["Classes"] == "4 classes of the model (only assumed)"
