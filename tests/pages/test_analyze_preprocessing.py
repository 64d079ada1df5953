"""The Analyze page where the images choose the preprocessing and, among look-alikes, the architecture."""

import functools
import io
from dataclasses import replace

import pytest
import timm
import torch
from streamlit.testing.v1 import AppTest

from senseapp.records.inputs import PreparationChoice, PreparationTrial, PreviewReport
from senseapp.records.spec import RunSpec
from senseapp.server.service import Service
from tests.pages.conftest import ScriptedInputs, selects, started, texts, wait_for_card
from tests.pages.records import a_reading
from tests.pages.test_analyze_uploads import CLASSES, archive, upload_checkpoint, upload_images
from tests.pictures import class_files

VERDICT = (
    "Preprocessing chosen by 50 labelled images: 32 × 32 px: 47 of 50 right (84 to 98 %); the architecture's own: "
    "4 of 50 right."
)


def chosen_for(spec: RunSpec) -> PreparationChoice:
    given = replace(spec, data=replace(spec.data, preparation="given"))
    small = replace(given, model=replace(spec.model, library="timm", name="tf_efficientnet_lite0", img_size=32))
    trials = (
        PreparationTrial(title="32 × 32 px", spec=small, num_images=50, correct=47, score=0.3),
        PreparationTrial(title="the architecture's own", spec=given, num_images=50, correct=4, score=2.2),
    )
    settled = replace(small, data=replace(small.data, chosen_by=(VERDICT,)))
    return PreparationChoice(spec=settled, chosen=trials[0], trials=trials, verdict=VERDICT, caveats=("One caveat.",))


@pytest.fixture
def service(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    def preview(self: ScriptedInputs, spec: RunSpec) -> PreviewReport:
        choice = chosen_for(spec) if spec.data.preparation == "auto" else None
        score = 0.94 if spec.model.img_size == 32 or choice else 0.08
        return PreviewReport(reading=a_reading(), num_scored=50, score=score, choice=choice)

    monkeypatch.setattr(ScriptedInputs, "preview", preview)
    return service


@functools.cache
def look_alike() -> bytes:
    file = io.BytesIO()
    torch.save(timm.create_model("tf_efficientnet_lite0", num_classes=10).state_dict(), file)
    return file.getvalue()


@pytest.fixture
def analyze(app: AppTest) -> AppTest:
    wait_for_card(app.run())
    upload_checkpoint(app, "weights.pth", look_alike())
    return upload_images(app, "digits.zip", archive(class_files(CLASSES, each=2)))


def preprocessing(app: AppTest):
    return next(box for box in app.selectbox if box.label == "Preprocessing")


@pytest.mark.slow
def test_what_the_images_choose_is_shown_and_measured(analyze: AppTest, service: Service) -> None:
    assert not analyze.exception
    assert selects(analyze)[0].options[0] == "timm/efficientnet_lite0 or a look-alike · the images decide"
    assert VERDICT in texts(analyze)
    assert "One caveat." in texts(analyze)
    assert list(preprocessing(analyze).options) == [
        "32 × 32 px · 47 of 50 right",
        "the architecture's own · 4 of 50 right",
    ]
    analyze.button(key="analyze.run").click().run()
    spec = started(service)
    assert (spec.model.title, spec.model.img_size) == ("timm/tf_efficientnet_lite0", 32)
    assert (spec.data.preparation, spec.data.chosen_by) == ("given", (VERDICT,))


@pytest.mark.slow
def test_another_preprocessing_can_be_picked(analyze: AppTest, service: Service) -> None:
    preprocessing(analyze).set_value("the architecture's own")
    analyze.button(key="reading.apply").click().run()
    wait_for_card(analyze)
    assert "the model gets 8 % of 50 images right" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    spec = started(service)
    assert (spec.model.img_size, spec.data.preparation, spec.data.chosen_by) == (None, "given", ())


def test_a_renamed_checkpoint_is_offered_as_a_guess(app: AppTest, service: Service) -> None:
    wait_for_card(app.run())
    state = timm.create_model("test_resnet", num_classes=4).state_dict()
    file = io.BytesIO()
    torch.save({f"p{place}": value for place, value in enumerate(state.values())}, file)
    upload_checkpoint(app, "net.pth", file.getvalue())
    assert selects(app)[0].options[0] == "timm/test_resnet · order and shapes fit, under other names"
    assert "Names are unknown; order and shapes fit timm/test_resnet. This is a guess" in texts(app)
    assert "4 classes" in texts(app)
    assert not app.error
    app.button_group(key="analyze.data.source").set_value("None").run()
    app.button(key="analyze.run").click().run()
    assert started(service).model.title == "timm/test_resnet"
