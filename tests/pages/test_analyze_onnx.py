"""The Analyze page with an uploaded ONNX file: what is in it, what can be chosen, and refusals that leave nothing."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data, write_external_data_tensors
from streamlit.testing.v1 import AppTest

from senseapp.records.spec import ModelSpec
from senseapp.server.service import Service
from tests.onnx_files import exported
from tests.onnx_graphs import file_of, node, weights
from tests.pages.conftest import texts, wait_for_card
from tests.pages.records import profile
from tests.small_models import small_network

HEAD = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f")]


def with_two_outputs() -> bytes:
    more = [node("Identity", "f", "features"), node("Softmax", "f", "shares", axis=1)]
    return file_of([*HEAD, *more], {"w": weights(3, 3, 3, 3)}, outputs=["features", "shares"])


def upload(app: AppTest, content: bytes, name: str = "net.onnx") -> AppTest:
    app.button_group(key="analyze.model.source").set_value("Your network (.onnx)").run()
    app.file_uploader[0].upload(name, content).run()
    return wait_for_card(app)


def kept_files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "uploads").rglob("*") if path.is_file())


def started(app: AppTest, service: Service) -> ModelSpec:
    app.button_group(key="analyze.data.source").set_value("None").run()
    wait_for_card(app)
    app.button(key="analyze.run").click().run()
    assert not app.exception
    return service.runs()[0].spec.model


def output_of(app: AppTest) -> object:
    return next(box for box in app.selectbox if box.label == "Output to measure")


def test_a_file_with_one_output_needs_no_choice(analyze: AppTest, service: Service) -> None:
    upload(analyze, exported(small_network(), batch=1))
    assert not analyze.exception
    assert "input `images` 1 × 3 × 16 × 16, 1 image at a time" in texts(analyze)
    assert "output `scores` 1 × 6" in texts(analyze)
    assert not [box for box in analyze.selectbox if box.label in ("Output to measure", "Image size")]
    model = started(analyze, service)
    assert (model.library, Path(model.checkpoint).name, model.outputs) == ("onnx", "net.onnx", ())


def test_an_output_is_chosen_and_is_part_of_the_run_and_of_the_address(analyze: AppTest, service: Service) -> None:
    upload(analyze, with_two_outputs())
    box = output_of(analyze)
    assert box.options == [  # type: ignore[attr-defined]
        "f · 1 × 3 · before the Softmax “shares”",
        "features · 1 × 3",
        "shares · 1 × 3",
    ]
    assert "output `f` 1 × 3" in texts(analyze)
    box.set_value(("features",)).run()  # type: ignore[attr-defined]
    wait_for_card(analyze)
    assert "output `features` 1 × 3" in texts(analyze)
    assert started(analyze, service).outputs == ("features",)


def test_the_size_of_images_is_chosen_where_the_file_leaves_it_free(analyze: AppTest, service: Service) -> None:
    upload(analyze, exported(small_network(), free_size=True))
    box = next(box for box in analyze.selectbox if box.label == "Image size")
    assert box.value == 0  # by the images
    box.set_value(64).run()
    wait_for_card(analyze)
    assert "input `images` 1 × 3 × any × any" in texts(analyze)
    assert started(analyze, service).img_size == 64


def test_of_two_tasks_the_likelier_is_preset_and_a_person_may_choose(analyze, service, monkeypatch) -> None:
    card = replace(profile(), input_shape=(3, 8, 8))
    monkeypatch.setattr(type(service.inputs), "model_card", lambda _inputs, _model: card)
    upload(analyze, file_of([*HEAD], {"w": weights(3, 3, 3, 3)}, outputs=["c"]))  # classes of pixels, or anything else
    assert analyze.selectbox(key="analyze.model.task").value == "segmentation"
    analyze.selectbox(key="analyze.model.task").set_value("classification").run()  # which is kept
    assert "“c” (1, 3, 8, 8). These outputs could be segmentation or values" in analyze.warning[0].value
    analyze.selectbox(key="analyze.model.task").set_value("values").run()
    wait_for_card(analyze)
    assert not analyze.warning
    assert analyze.button(key="analyze.run").disabled  # which images, is asked
    analyze.button(key="analyze.data.take").click().run()
    wait_for_card(analyze)
    assert not analyze.button(key="analyze.run").disabled


def test_outputs_that_fit_no_task_are_said(analyze: AppTest) -> None:
    nodes = [*HEAD, node("ReduceSum", "f", "s", keepdims=0)]
    upload(analyze, file_of(nodes, {"w": weights(3, 3, 3, 3)}, outputs=["s"]))
    assert "Export the network" in analyze.warning[0].value
    assert analyze.button(key="analyze.run").disabled


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "int8.onnx",
            file_of([node("ConvInteger", "x w", "y", name="conv/quant")], {"w": weights(3, 3, 3, 3)}),
            "“conv/quant” (ConvInteger) is not supported: it computes in integers",
        ),
        ("empty.onnx", b"", "is empty (0 bytes)"),
    ],
)
def test_a_file_that_cannot_be_measured_is_said_beside_its_field_and_is_gone(
    analyze: AppTest, tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    upload(analyze, content, name)
    assert [sentence in error.value for error in analyze.error] == [True]
    assert kept_files(tmp_path / "home") == []
    assert analyze.button(key="analyze.run").disabled
    assert analyze.file_uploader


def test_a_graph_and_its_weights_are_one_upload(analyze: AppTest, service: Service, tmp_path: Path) -> None:
    model = onnx.load_from_string(exported(small_network()))
    convert_model_to_external_data(model, location="net.onnx.data", size_threshold=0)
    write_external_data_tensors(model, str(tmp_path))
    graph, weights_file = model.SerializeToString(), (tmp_path / "net.onnx.data").read_bytes()
    upload(analyze, graph)
    assert "Choose both files together" in analyze.error[0].value
    analyze.file_uploader[0].set_value([("net.onnx", graph, ""), ("net.onnx.data", weights_file, "")]).run()
    wait_for_card(analyze)
    assert not analyze.error
    assert kept_files(tmp_path / "home") == ["net.zip"]
    assert "output `scores` 1 × 6" in texts(analyze)
    assert Path(started(analyze, service).checkpoint).name == "net.zip"


def test_nodes_that_are_not_read_are_left_to_onnxruntime_only_when_that_is_wanted(analyze, service) -> None:
    offsets = node("Conv", "x v", "o", pads=[1, 1, 1, 1])
    nodes = [offsets, node("DeformConv", "x w o", "c", pads=[1, 1, 1, 1]), *HEAD[1:], node("Identity", "f", "y")]
    upload(analyze, file_of(nodes, {"v": weights(18, 3, 3, 3), "w": weights(4, 3, 3, 3)}, opset=19))
    assert "(DeformConv) is not supported" in " ".join(each.value for each in analyze.warning)
    assert analyze.button(key="analyze.run").disabled
    next(each for each in analyze.toggle if "onnxruntime" in each.label).set_value(True).run()
    wait_for_card(analyze)
    assert not analyze.warning
    assert "output `y` 1 × 4" in texts(analyze)
    assert started(analyze, service).in_runtime


def test_an_onnx_file_among_checkpoints_is_read_as_one(analyze: AppTest, service: Service) -> None:
    analyze.button_group(key="analyze.model.source").set_value("Your weights (.pt, .safetensors)").run()
    analyze.file_uploader[0].upload("net.onnx", exported(small_network())).run()
    wait_for_card(analyze)
    assert not analyze.exception
    assert analyze.button_group(key="analyze.model.source").value == "Your network (.onnx)"
    assert "output `scores` 1 × 6" in texts(analyze)
    assert started(analyze, service).library == "onnx"
