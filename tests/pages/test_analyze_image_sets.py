"""The Analyze page with published image sets: downloaded when asked, and one sentence without a network."""

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.analyze import model as model_card
from senseapp.app.analyze.images import _class_column
from senseapp.data.downloads import image_set_folder
from senseapp.descriptions.sources import IMAGE_SETS
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.server.service import Service
from tests.image_set_files import Publisher
from tests.pages.conftest import started, texts, wait_for_card


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar.tar.gz")  # a port that nothing listens on


@pytest.fixture
def analyze(app: AppTest) -> AppTest:
    wait_for_card(app.run())
    app.button_group(key="analyze.data.source").set_value("Public set").run()
    return app


def test_run_may_be_pressed_before_anything_is_downloaded(analyze: AppTest, service: Service) -> None:
    options = analyze.selectbox(key="analyze.data.set").options
    assert len(options) == len(IMAGE_SETS)
    assert options[0] == "CIFAR-10 · animals and vehicles, 32 × 32 pixels · 10 classes · 10,000 images"
    assert "Not here yet: 170 MB" in texts(analyze)
    analyze.selectbox(key="analyze.data.set").set_value("mnist").run()
    assert "Not here yet: 12 MB" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data == DataSpec(kind="torchvision", name="mnist")


@pytest.mark.usefixtures("offline")
def test_offline_is_one_sentence_and_can_be_tried_again(analyze: AppTest) -> None:
    analyze.button(key="analyze.data.set.download").click().run()
    wait_for_card(analyze)
    assert len(analyze.error) == 1
    shown = analyze.error[0].value
    assert "CIFAR-10 could not be downloaded (its server cannot be reached)" in shown
    assert "these need no network" in shown
    assert analyze.button(key="analyze.run").disabled
    analyze.button(key="analyze.data.again").click().run()
    wait_for_card(analyze)
    assert len(analyze.error) == 1


def test_a_set_that_is_here_is_looked_at_at_once(
    analyze: AppTest, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_set_folder("svhn")
    folder.mkdir(parents=True)
    Publisher(folder, "http://nowhere.invalid", monkeypatch).publish("svhn")
    analyze.selectbox(key="analyze.data.set").set_value("svhn").run()
    wait_for_card(analyze)
    assert "20 images · 10 classes · with the labels of the set" in texts(analyze)
    assert "10 of 10 labels found in the model, by number" in analyze.expander[0].label
    assert analyze.selectbox(key="analyze.data.labels.svhn").options == [
        "The image set",
        "Nowhere: measure without labels",
    ]
    analyze.selectbox(key="analyze.data.labels.svhn").set_value("none").run()
    wait_for_card(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data == DataSpec(kind="torchvision", name="svhn", labels="none")


def test_classes_are_chosen_by_name_where_names_are_known() -> None:
    named = _class_column(("tench", "goldfish"))["type_config"]
    assert named["type"] == "selectbox"
    assert [option["label"] for option in named["options"]] == ["0 · tench", "1 · goldfish"]
    assert [option["value"] for option in named["options"]] == [0, 1]
    assert _class_column(())["type_config"]["type"] == "number"
    assert _class_column(("x",) * 21_843)["type_config"]["type"] == "number"  # too many for a list in a browser


def test_weights_that_are_fetched_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    resnet = ModelSpec(library="timm", name="resnet18", pretrained=True)
    monkeypatch.setattr(model_card, "weights_so_far", lambda: 12_400_000)
    assert "12 of about 46 MB" in model_card._reading(resnet)
    assert "Reading the model" in model_card._reading(ModelSpec())
