"""The Analyze page with an uploaded ONNX file: what is in it, what can be chosen, and refusals that leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.records.spec import ModelSpec
from senseapp.server.service import Service
from tests.onnx_files import exported
from tests.onnx_graphs import file_of, node, weights
from tests.pages.conftest import wait_for_card
from tests.small_models import small_network

HEAD = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "f")]


@pytest.fixture
def analyze(app: AppTest) -> AppTest:
    return wait_for_card(app.run())


def with_two_outputs() -> bytes:
    more = [node("Identity", "f", "features"), node("Softmax", "f", "shares", axis=1)]
    return file_of([*HEAD, *more], {"w": weights(3, 3, 3, 3)}, outputs=["features", "shares"])


def upload(app: AppTest, content: bytes, name: str = "net.onnx") -> AppTest:
    app.button_group(key="analyze.model.source").set_value("ONNX file").run()
    app.file_uploader[0].upload(name, content).run()
    return wait_for_card(app)


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


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
    upload(analyze, exported(small_network()))
    assert not analyze.exception
    assert "input `images` 1 × 3 × 16 × 16, any number of images" in texts(analyze)
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
    assert "“shares” is a Softmax; the network returns “f”" in texts(analyze)
    box.set_value(("features",)).run()  # type: ignore[attr-defined]
    wait_for_card(analyze)
    assert "is a Softmax" not in texts(analyze)
    model = started(analyze, service)
    assert model.outputs == ("features",)


def test_the_size_of_images_is_chosen_where_the_file_leaves_it_free(analyze: AppTest, service: Service) -> None:
    upload(analyze, exported(small_network(), free_size=True))
    box = next(box for box in analyze.selectbox if box.label == "Image size")
    assert box.value == 224
    box.set_value(64).run()
    wait_for_card(analyze)
    assert "input `images` 1 × 3 × 64 × 64" in texts(analyze)
    assert started(analyze, service).img_size == 64


def test_outputs_that_do_not_fit_the_task_are_said_and_others_can_be_chosen(analyze: AppTest) -> None:
    content = file_of([*HEAD], {"w": weights(3, 3, 3, 3)}, outputs=["c"])
    upload(analyze, content)
    assert "No output of the file is one of" in analyze.warning[0].value
    assert "“c” (1, 3, 8, 8)" in analyze.warning[0].value
    assert analyze.button(key="analyze.run").disabled


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("words.onnx", b"not a graph, but words" * 50, "not an ONNX model"),
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


def test_a_file_of_a_run_can_be_chosen_again_for_its_own_source_only(analyze: AppTest, service: Service) -> None:
    upload(analyze, exported(small_network()))
    started(analyze, service)
    analyze.switch_page("pages/analyze.py").run()
    wait_for_card(analyze)
    analyze.button(key="analyze.onnx.replace").click().run()
    assert analyze.selectbox(key="analyze.onnx.again").options == ["net.onnx"]
    analyze.button_group(key="analyze.model.source").set_value("Upload a checkpoint").run()
    assert not [box for box in analyze.selectbox if box.key == "analyze.checkpoint.again"]
