"""The card What we understood: the reading in words, what changes it, and the question that only a person decides."""

import functools
import io
from dataclasses import replace

import pytest
import streamlit as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from senseapp.app.runs.list import table_key
from senseapp.core.errors import InvalidDataset
from senseapp.records.answers import ChangedAnswers, ChangedPicture
from senseapp.records.inputs import PreparationChoice, PreparationTrial, PreviewReport, SeenPicture
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.tasks import TASKS
from senseapp.views.words.wording import image_facts
from tests.onnx_files import exported
from tests.pages.conftest import ScriptedInputs, finish, open_page, started, texts, wait_for_card
from tests.pages.records import a_reading, result
from tests.pages.test_analyze_uploads import archive, upload_images
from tests.pictures import png
from tests.small_models import small_network

BYTES, SHARES = ((0.0,) * 3, (1 / 255,) * 3), ((0.0,) * 3, (1.0,) * 3)
RANGES = (("values from 0 to 255", *BYTES), ("values from 0 to 1", *SHARES))
UNKNOWN = "It is not known how images of net.onnx are read: the file does not say. Choose one of 2 readings."
WRONG = "The original finds next to nothing of what is labelled, so it was probably read wrongly. Say how it is read."


def picture(label: str = "") -> SeenPicture:
    file = io.BytesIO()
    Image.new("RGB", (96, 96)).save(file, "PNG")
    drawn = (file.getvalue(),) * (2 if label else 1)
    return SeenPicture(name="a.png", png=file.getvalue(), label=label, prediction="2 × cat", drawn=drawn)


def trial(spec: RunSpec, title: str, values: tuple[tuple[float, ...], tuple[float, ...]]) -> PreparationTrial:
    mean, std = values
    data = replace(spec.data, mean=mean, std=std, fit="stretch", channel_order="rgb", preparation="given")
    tried = replace(spec, data=data)
    return PreparationTrial(title=title, spec=tried, num_images=32, correct=None, score=0.0, words=f"{title}: so so")


def report_of(spec: RunSpec, *, question: str = "", labelled: bool = False) -> PreviewReport:
    """Return what the server says: of settings that leave the values open, that ImageNet's are only assumed."""
    if spec.data.preparation == "given" or spec.data.mean:
        said = "values from 0 to 255" if spec.data.std == BYTES[1] else "values from 0 to 1"
        return PreviewReport(reading=a_reading(said, "person"), pictures=(picture(),) * 4, ranges=RANGES)
    trials = tuple(trial(spec, title, (mean, std)) for title, mean, std in reversed(RANGES))
    settled = trials[0].spec
    evidence = (("layout", "fit"), ("preparation", "assumed" if question else "labels"))
    choice = PreparationChoice(
        spec=replace(settled, data=replace(settled.data, evidence=evidence, chosen_by=("So it was.",))),
        chosen=trials[0],
        trials=trials,
        guess=not labelled,
        subject="Reading",
        verdict="values from 0 to 1: so so.",
        question=question,
    )
    seen = (picture("1 × cat" if labelled else ""),) * 4
    return PreviewReport(
        reading=a_reading("values from 0 to 1", "assumed" if question else "labels"),
        pictures=() if question else seen,
        ranges=RANGES,
        choice=choice,
        asked=tuple((each, seen) for each in trials) if question else (),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[RunSpec]:
    """The settings that previews were asked for; the parameter is how the report is made."""
    found: list[RunSpec] = []

    def preview(self: ScriptedInputs, spec: RunSpec) -> PreviewReport:
        found.append(spec)
        return report_of(spec, **getattr(request, "param", {}))

    monkeypatch.setattr(ScriptedInputs, "preview", preview)
    return found


@functools.cache
def a_file() -> bytes:
    return exported(small_network())


@pytest.fixture
def analyze(app: AppTest, asked: list[RunSpec]) -> AppTest:
    """The page with somebody's ONNX file and pictures."""
    wait_for_card(app.run())
    app.button_group(key="analyze.model.source").set_value("Your network (.onnx)").run()
    app.file_uploader[0].upload("net.onnx", a_file()).run()
    wait_for_card(app)
    return upload_images(app, "photos.zip", archive({f"{number}.png": png(number) for number in range(6)}))


def field(app: AppTest, label: str):
    return next(box for box in app.selectbox if box.label == label)


def button(app: AppTest, label: str, place: int = 0):
    return [each for each in app.button if each.label == label][place]


def captions(app: AppTest) -> list[str]:
    return [each.caption for image in app.image for each in image.proto.imgs]


@pytest.mark.parametrize("asked", [{"labelled": True}], indirect=True)
def test_each_part_is_said_with_how_it_is_known_and_predictions_stand_beside_labels(
    analyze: AppTest, service: Service
) -> None:
    assert not analyze.exception
    assert "**Images** · 32 × 32 pixels, values from 0 to 1, crop · *it suits the labels best*" in texts(analyze)
    assert "**Classes** · 10 classes of the model · *nothing else fits*" in texts(analyze)
    assert captions(analyze)[-8:] == ["2 × cat"] * 4 + ["1 × cat"] * 4
    assert "values from 0 to 1: so so." in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.evidence == (("layout", "fit"), ("preparation", "labels"))


@pytest.mark.parametrize("asked", [{"labelled": True}], indirect=True)
def test_what_a_person_changes_is_shown_and_measured(analyze: AppTest, asked: list[RunSpec], service: Service) -> None:
    offered = field(analyze, "Values of the pixels").options
    assert offered == ["As understood", "Values from 0 to 255", "Values from 0 to 1"]
    field(analyze, "Values of the pixels").set_value(BYTES)
    field(analyze, "Order of the channels").set_value("bgr")
    field(analyze, "Pictures are brought to size by").set_value("letterbox")
    wait_for_card(button(analyze, "Apply", -1).click().run())
    told = asked[-1].data
    assert ((told.mean, told.std), told.channel_order, told.fit, told.preparation) == (
        BYTES,
        "bgr",
        "letterbox",
        "auto",
    )
    assert "values from 0 to 255, crop · *chosen by a person*" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.channel_order == "bgr"


@pytest.mark.parametrize("asked", [{"question": UNKNOWN}], indirect=True)
def test_what_is_only_assumed_is_not_measured_until_a_person_chooses_by_the_pictures(
    analyze: AppTest, asked: list[RunSpec], service: Service, another_app
) -> None:
    assert not analyze.exception
    assert [each.value for each in analyze.warning] == [UNKNOWN]
    run = analyze.button(key="analyze.run")
    assert run.disabled
    assert run.help == UNKNOWN
    assert run.help in texts(analyze)
    assert len(captions(analyze)) >= 8
    assert button(analyze, "Use this", 1).help == "Reads the images and the outputs this way: values from 0 to 255."
    field(analyze, "Values of the pixels").set_value(SHARES)  # or says what is not among the readings
    wait_for_card(button(analyze, "Apply").click().run())
    assert asked[-1].data.std == SHARES[1]
    assert not analyze.warning
    field(analyze, "Values of the pixels").set_value(((), ()))
    wait_for_card(button(analyze, "Apply", -1).click().run())
    assert [each.value for each in analyze.warning] == [UNKNOWN]  # the question comes again
    button(analyze, "Use this", 1).click().run()
    wait_for_card(analyze)
    assert not analyze.warning
    assert "**Images** · 32 × 32 pixels, values from 0 to 255, crop · *chosen by a person*" in texts(analyze)
    reloaded = another_app()
    for name, value in analyze.query_params.items():
        reloaded.query_params[name] = value
    wait_for_card(reloaded.run())
    assert not reloaded.warning
    assert field(reloaded, "Values of the pixels").value == BYTES
    analyze.button(key="analyze.run").click().run()
    data = started(service).data
    assert ((data.mean, data.std), data.fit, data.preparation) == (BYTES, "stretch", "given")
    assert data.evidence == (("layout", "fit"), ("preparation", "person"))


def test_what_cannot_be_read_as_a_person_says_is_read_anew(
    analyze: AppTest, monkeypatch: pytest.MonkeyPatch, asked: list[RunSpec]
) -> None:
    def refuse(self: ScriptedInputs, spec: RunSpec) -> PreviewReport:
        if spec.data.channel_order:
            raise InvalidDataset("These pictures are grey.")
        return report_of(spec)

    monkeypatch.setattr(ScriptedInputs, "preview", refuse)
    field(analyze, "Order of the channels").set_value("bgr")
    wait_for_card(button(analyze, "Apply", -1).click().run())
    assert [each.value for each in analyze.error] == ["These pictures are grey."]
    assert analyze.button(key="analyze.run").disabled
    wait_for_card(analyze.button(key="reading.forget").click().run())
    assert not analyze.error
    assert not analyze.button(key="analyze.run").disabled


def test_a_layout_of_one_task_is_not_kept_for_another(
    analyze: AppTest, monkeypatch: pytest.MonkeyPatch, asked: list[RunSpec]
) -> None:
    layouts = (('{"name":"classes first"}', "classes first"), ('{"name":"classes last"}', "classes last"))
    monkeypatch.setattr(ScriptedInputs, "preview", lambda _inputs, spec: replace(report_of(spec), layouts=layouts))
    monkeypatch.setattr(TASKS["classification"].__class__, "reader_of", lambda _task, _key: None)
    field(analyze, "Values of the pixels").set_value(BYTES)
    wait_for_card(button(analyze, "Apply", -1).click().run())
    field(analyze, "Layout of the outputs").set_value('{"name":"classes last"}')
    wait_for_card(analyze.button(key="reading.apply").click().run())
    assert "classes last" in str(analyze.query_params["model.layout"])
    monkeypatch.undo()
    analyze.selectbox(key="analyze.model.task").set_value("multilabel").run()
    assert not wait_for_card(analyze).exception


@pytest.mark.parametrize("asked", [{"question": WRONG, "labelled": True}], indirect=True)
def test_what_was_probably_read_wrongly_is_measured_only_when_a_person_insists(
    analyze: AppTest, service: Service
) -> None:
    assert analyze.button(key="analyze.run").disabled
    assert "**As labelled**" in texts(analyze)
    assert len([each for each in analyze.button if each.label == "Use this"]) == 1
    button(analyze, "Measure it like this all the same").click().run()
    wait_for_card(analyze)
    analyze.button(key="analyze.run").click().run()
    assert (started(service).data.mean, started(service).data.std) == SHARES


def test_the_task_is_changed_where_it_is_read(analyze: AppTest) -> None:
    boxes = [box for box in analyze.selectbox if box.label == "What it does"]
    assert [box.value for box in boxes] == ["classification"] * 2
    boxes[1].set_value("multilabel")
    button(analyze, "Apply").click().run()
    assert analyze.selectbox(key="analyze.model.task").value == "multilabel"


@pytest.mark.parametrize("asked", [{"question": UNKNOWN}], indirect=True)
def test_a_check_asks_as_well(app: AppTest, asked: list[RunSpec]) -> None:
    open_page(app, "pages/check.py")
    file = exported(small_network())
    app.file_uploader[0].upload("net.onnx", file).run()
    wait_for_card(app)
    app.file_uploader[0].upload("int8.onnx", file).run()
    upload_images(app, "photos.zip", archive({f"{number}.png": png(number) for number in range(6)}), page="check")
    assert not app.exception
    assert app.button(key="check.start").disabled
    button(app, "Use this", 1).click().run()
    wait_for_card(app)
    assert not app.button(key="check.start").disabled


def test_the_reading_of_a_run_is_said_on_its_pages_and_nothing_of_one_without(
    app: AppTest, service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = finish(service, backend, RunSpec())
    said = "Images: 32 × 32 pixels, values from 0 to 255, crop (it suits the labels best)."
    open_page(app, "pages/results.py", run=run_id, **{"show-details": "yes"})
    assert not app.exception
    assert said not in texts(app)
    read = replace(result(RunSpec()), reading=a_reading("values from 0 to 255", "labels"))
    monkeypatch.setattr(Service, "result", lambda _service, _run_id: read)
    st.cache_resource.clear()
    app.run()
    assert not app.exception
    assert said in texts(app).replace("\\", "")
    open_page(app, "pages/runs.py")
    app.session_state[table_key(service.runs())] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    app.run()
    assert said in texts(app).replace("\\", "")
    facts = image_facts(read)
    assert facts["Read: images"] == "32 × 32 pixels, values from 0 to 255, crop (it suits the labels best)"
    assert not [name for name in image_facts(result(RunSpec())) if name.startswith("Read")]


def test_pictures_that_were_kept_are_shown_where_the_reading_is_unfolded(
    app: AppTest, service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = finish(service, backend, RunSpec())
    read = replace(result(RunSpec()), reading=a_reading())
    kept = ChangedPicture(
        name="a.png", png=picture().png, label="cat", before="cat", after="dog", sure_before=0.9, sure_after=0.6
    )
    found = ChangedAnswers(subject="int8", num_changed=1, num_images=9, by_labels=True, drop=0.1, pictures=(kept,))
    monkeypatch.setattr(Service, "result", lambda _service, _run_id: read)
    monkeypatch.setattr(Service, "changed_answers", lambda _service, _run_id: (found,))
    st.cache_resource.clear()
    open_page(app, "pages/results.py", run=run_id, **{"show-details": "yes"})
    assert not app.image
    app.session_state["reading"] = True
    app.run()
    assert not app.exception
    assert "Is cat. Before: cat (90 %), now: dog (60 %)" in captions(app)
