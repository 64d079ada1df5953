"""The Analyze page: filled in, forgiving, and quick to start."""

import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.analyze import checkpoint
from senseapp.app.common.state import VisitorState
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.records.goal import usual_run
from senseapp.records.jobs import RunState
from senseapp.records.spec import DataSpec, Goal, ModelSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.inputs import DETECTION_DEMO, PHOTOGRAPHS_DEMO
from senseapp.server.service import Service
from tests.pages.conftest import finish, started, texts, wait_for_card
from tests.pages.test_words import blocks


def test_the_demo_is_filled_in_and_run_works_at_once(app: AppTest, service: Service) -> None:
    app.run()
    assert not app.exception
    assert not app.button(key="analyze.run").disabled
    app.button(key="analyze.run").click().run()
    assert service.runs()[0].state is RunState.QUEUED  # the page came back, though nothing has been measured
    assert started(service) == usual_run("smaller")
    assert app.query_params["run"] == service.runs()[0].run_id
    assert app.title[0].value == "Digits · fewer bits"


def test_the_card_and_the_plan_appear_once_the_model_is_read(analyze: AppTest) -> None:
    assert "**6.50 k**" in texts(analyze)
    assert "6 layers × 3 levels on all images, measured: **about 40 s** here" in texts(analyze)


def test_the_plan_says_what_an_earlier_run_has_measured(analyze: AppTest, service: Service, backend: Backend) -> None:
    assert "measured before" not in texts(analyze)
    finish(service, backend, usual_run("smaller"))
    wait_for_card(analyze.run())
    assert "measured: **about 40 s** here; measured before: the bars come at once" in texts(analyze)
    analyze.button_group(key="analyze.levels.quantization").set_value([3.0, 4.0]).run()
    assert "here; 1 of the levels measured before" in texts(analyze)


def test_pruning_is_planned_in_groups_once_they_are_found(analyze: AppTest) -> None:
    analyze.radio(key="analyze.compression.kind").set_value("pruning").run()
    for _ in range(100):
        if "groups (" in texts(analyze):
            break
        time.sleep(0.05)
        analyze.run()
    assert "2 groups (5 layers) × 3 levels on all images" in texts(analyze)


@pytest.mark.parametrize(
    ("kind", "config", "levels"),
    [
        ("sparsity", SparsityConfig(), (0.25, 0.5, 0.75)),
        ("pruning", PruningConfig(), (0.1, 0.3, 0.5)),
        ("quantization", QuantizationConfig(), (2, 4, 8)),
    ],
)
def test_each_compression_starts_with_levels_of_its_own(
    analyze: AppTest, service: Service, kind: str, config: object, levels: tuple[float, ...]
) -> None:
    analyze.radio(key="analyze.compression.kind").set_value(kind).run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.compression == config
    assert started(service).sensitivity.levels == levels


@pytest.mark.parametrize(
    ("kind", "typed", "sentence"),
    [
        ("pruning", "250", "above 0 % and below 100 %"),
        ("quantization", "1", "whole number of bits from 2 to 8"),
        ("sparsity", "many", "must be numbers"),
    ],
)
def test_a_bad_level_gets_one_sentence_and_nothing_is_lost(
    analyze: AppTest, kind: str, typed: str, sentence: str
) -> None:
    analyze.radio(key="analyze.compression.kind").set_value(kind).run()
    analyze.text_input(key=f"analyze.levels.other.{kind}").set_value(typed).run()
    assert [sentence in error.value for error in analyze.error] == [True]
    assert analyze.button(key="analyze.run").disabled
    assert analyze.text_input(key=f"analyze.levels.other.{kind}").value == typed
    assert not analyze.exception


def test_other_levels_are_added_to_the_chosen_ones_of_which_there_is_one(analyze: AppTest, service: Service) -> None:
    levels = "analyze.levels.quantization"
    analyze.button_group(key=levels).set_value([]).run()
    assert [error.value for error in analyze.error] == ["Choose at least one level."]
    assert "Choose at least one level." in texts(analyze)  # beside Run
    analyze.button_group(key=levels).set_value([2, 4]).run()
    analyze.text_input(key="analyze.levels.other.quantization").set_value("6, 5").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.levels == (2, 4, 5, 6)


def test_a_layer_pattern_that_matches_nothing_names_layers_that_exist(analyze: AppTest, service: Service) -> None:
    analyze.text_input(key="analyze.options.layers").set_value("layer9.*").run()
    assert "conv1, layer1.0.conv1" in analyze.error[0].value
    assert analyze.button(key="analyze.run").disabled
    ids = [str(block.proto.id) for block in blocks(analyze.main) if getattr(block.proto, "id", "")]
    assert any("block_options_open" in each for each in ids)  # with Expert off, too
    assert next(each for each in analyze.expander if each.label == "More options").proto.expanded
    analyze.text_input(key="analyze.options.layers").set_value("layer1.*, fc").run()
    assert not analyze.error
    assert "3 layers of 6 fit" in texts(analyze)
    assert "3 layers × 3 levels" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.layers == ("layer1.*", "fc")


def test_more_images_than_there_are_are_all_taken_and_that_is_said(analyze: AppTest, service: Service) -> None:
    for wanted in (898, 99_999_999):
        analyze.number_input(key="analyze.options.samples").set_value(wanted).run()
        assert "There are 897 images: all are used." in texts(analyze)
        assert not analyze.button(key="analyze.run").disabled
        assert analyze.number_input(key="analyze.options.samples").value == wanted  # nothing typed is lost
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.num_samples is None


def test_what_saves_nothing_in_a_file_that_runs_is_said_before_the_run(analyze: AppTest) -> None:
    said = "Zeros save no time and no bytes in a file that runs here. “Store weights with fewer bits” saves both."
    for kind, goal, is_said in (
        ("sparsity", "smaller", True), ("sparsity", "faster", True), ("sparsity", "targets", False),
        ("pruning", "smaller", False), ("quantization", "faster", False),
    ):  # fmt: skip
        analyze.radio(key="analyze.compression.kind").set_value(kind)
        analyze.radio(key="analyze.goal").set_value(goal).run()
        assert (said in texts(analyze)) is is_said, (kind, goal)


@pytest.mark.parametrize("goal", ["faster", "look"])
def test_the_goal_chooses_what_is_measured(analyze: AppTest, another_app, service, goal: Goal) -> None:
    analyze.radio(key="analyze.goal").set_value(goal).run()
    assert dict(analyze.query_params) == {"goal": goal}  # the rest follows from it
    linked = another_app()
    linked.query_params["goal"] = goal
    wait_for_card(linked.run())
    linked.button(key="analyze.run").click().run()
    assert started(service) == usual_run(goal)
    analyze.radio(key="analyze.goal").set_value("smaller").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service) == usual_run("smaller")


def test_what_a_person_changed_stays_when_the_goal_changes(analyze: AppTest, service: Service) -> None:
    analyze.button_group(key="analyze.levels.quantization").set_value([8.0, 6.0]).run()
    analyze.selectbox(key="analyze.metric").set_value("top1").run()
    analyze.radio(key="analyze.goal").set_value("targets").run()
    analyze.radio(key="analyze.goal").set_value("smaller").run()
    analyze.button(key="analyze.run").click().run()
    found = started(service).sensitivity
    assert (found.compression, found.levels, found.metric) == (QuantizationConfig(), (6, 8), "top1")
    analyze.switch_page("pages/analyze.py").run()
    analyze.radio(key="analyze.compression.kind").set_value("pruning").run()
    analyze.radio(key="analyze.goal").set_value("faster").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.compression == PruningConfig()


def test_quick_estimates_and_adapted_weights_are_switches(analyze: AppTest, service: Service) -> None:
    analyze.toggle(key="analyze.quick").set_value(True).run()
    analyze.toggle(key="analyze.options.adapted").set_value(True).run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).sensitivity.mode == "quick"
    assert started(service).sensitivity.adapted
    analyze.switch_page("pages/analyze.py").run()
    analyze.radio(key="analyze.compression.kind").set_value("pruning").run()
    assert not any(toggle.key == "analyze.options.adapted" for toggle in analyze.toggle)  # whose weights go


def pick_architecture(analyze: AppTest, text: str, title: str) -> AppTest:
    analyze.text_input(key="analyze.model.library.search").set_value(text).run()
    analyze.radio(key="analyze.model.library.entry").set_value(title).run()
    return wait_for_card(analyze)


def test_the_library_is_searched_and_one_network_picked(analyze: AppTest, service: Service) -> None:
    analyze.button_group(key="analyze.model.source").set_value("Library").run()
    assert analyze.button(key="analyze.run").disabled
    analyze.text_input(key="analyze.model.library.search").set_value("resnet18").run()
    assert analyze.button(key="analyze.run").disabled  # found, and not picked
    assert "timm/resnet18" in analyze.radio(key="analyze.model.library.entry").options[0]
    pick_architecture(analyze, "resnet18", "timm/resnet18")
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).model == ModelSpec(library="timm", name="resnet18", pretrained=True)
    assert started(service).data.kind == "random"


def test_popular_networks_are_there_at_once_and_those_that_work_offline(analyze: AppTest, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "_weights_here", lambda: frozenset({"timm/resnet18.a1_in1k"}))
    analyze.button_group(key="analyze.model.source").set_value("Library").run()
    assert analyze.radio(key="analyze.model.library.entry").label == "Popular networks first"
    assert "timm/resnet50" in analyze.radio(key="analyze.model.library.entry").options[0]
    analyze.toggle(key="analyze.model.library.offline").set_value(True).run()
    assert len(analyze.radio(key="analyze.model.library.entry").options) == 1
    assert "timm/resnet18" in analyze.radio(key="analyze.model.library.entry").options[0]
    analyze.text_input(key="analyze.model.library.search").set_value("mobilenet").run()
    assert "turn Works offline off" in analyze.error[0].value
    analyze.toggle(key="analyze.model.library.offline").set_value(False).run()
    analyze.text_input(key="analyze.model.library.search").set_value("no such network").run()
    assert "no such network" in analyze.error[0].value


def test_the_settings_of_an_earlier_run_bring_their_architecture(app: AppTest) -> None:
    draft = RunSpec(model=ModelSpec(library="torchvision", name="alexnet"))
    app.session_state["senseapp.session"] = VisitorState(draft=draft)
    wait_for_card(app.run())
    assert app.radio(key="analyze.model.library.entry").value == "torchvision/alexnet"
    assert not app.button(key="analyze.run").disabled


def test_another_model_is_given_photographs_and_no_digits(analyze: AppTest, service: Service) -> None:
    analyze.button_group(key="analyze.model.source").set_value("Library").run()
    pick_architecture(analyze, "resnet18", "timm/resnet18")
    assert "photographs" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data == DataSpec(kind="photographs")


DEMOS = (
    ("photographs", "demo/efficientnet_lite0", PHOTOGRAPHS_DEMO, "EfficientNet-Lite0 · fewer bits"),
    ("detector", "demo/shapes_detector", DETECTION_DEMO, "Detector of shapes · fewer bits"),
)


@pytest.mark.parametrize(("name", "model", "spec", "title"), DEMOS)
def test_another_demo_starts_with_one_click_or_fills_in_the_page(
    analyze: AppTest, service: Service, name: str, model: str, spec: RunSpec, title: str
) -> None:
    analyze.button_group(key="analyze.model.demo").set_value(model).run()
    wait_for_card(analyze)
    assert analyze.number_input(key="analyze.options.samples").value == spec.sensitivity.num_samples
    analyze.button(key="analyze.run").click().run()
    assert started(service) == spec
    analyze.switch_page("pages/analyze.py").run()
    analyze.button(key=f"analyze.{name}").click().run()
    assert started(service) == spec
    assert analyze.title[0].value == f"{title} (2)"  # the first is of the button Run


def test_blocks_that_are_filled_in_are_folded_and_say_with_what(analyze: AppTest) -> None:
    assert {
        "**Model** · Demo: a small network, 6 layers",
        "**Images** · The demo's handwritten digits, 897 images",
        "**Compression** · Store weights with fewer bits: 8, 4, 2 bits",
    } <= {text.value for text in analyze.markdown}
    names = ("model", "images", "compression")
    labels = [analyze.button(key=f"block.{name}.open").label for name in names]
    assert labels == ["Change model", "Change images", "Change compression"]  # each by its own name
    analyze.button(key="block.images.open").click().run()
    assert analyze.button(key="block.images.fold").label == "Fold images"
    analyze.button_group(key="analyze.model.source").set_value("Library").run()  # of which nothing is chosen yet
    assert not {"block.model.fold", "block.model.open"} & {button.key for button in analyze.button}  # it stays open


def test_a_server_folder_outside_the_roots_is_refused(analyze: AppTest, tmp_path: Path, monkeypatch) -> None:
    assert "Server folder" not in analyze.button_group(key="analyze.data.source").options
    monkeypatch.setenv("SENSEAPP_DATA_ROOTS", str(tmp_path))
    analyze.run()
    analyze.button_group(key="analyze.data.source").set_value("Server folder").run()
    assert analyze.text_input(key="analyze.data.folder").value == str(tmp_path)
    analyze.text_input(key="analyze.data.folder").set_value("/etc").run()
    assert "'/etc' is not one" in analyze.error[0].value
    assert analyze.button(key="analyze.run").disabled


def test_a_full_queue_is_one_sentence_and_the_page_stays(analyze: AppTest, service, monkeypatch) -> None:
    monkeypatch.setattr(service._backend.runner, "_max_queue", 0)
    analyze.button(key="analyze.run").click().run()
    assert "At most 0 runs may wait" in analyze.error[0].value
    assert analyze.title[0].value == "What do you need?"


def test_what_was_chosen_is_still_there_after_a_look_at_another_page(analyze: AppTest) -> None:
    analyze.radio(key="analyze.compression.kind").set_value("quantization").run()
    analyze.number_input(key="analyze.options.seed").set_value(7).run()
    analyze.switch_page("pages/guide.py").run()
    analyze.switch_page("pages/analyze.py").run()
    assert analyze.radio(key="analyze.compression.kind").value == "quantization"
    assert analyze.number_input(key="analyze.options.seed").value == 7
