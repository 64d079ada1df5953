"""Compare: pictures that two files answer differently, side by side."""

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidDataset
from senseapp.records.answers import FileAnswers, LabelledAnswer
from senseapp.records.candidate import Delivery
from senseapp.records.spec import DataSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.finished_runs import Work
from senseapp.server.service import Service
from tests.deployments import a_candidate
from tests.pages.conftest import finish, open_page, texts, wait_for_card
from tests.pages.test_compare import PAGE, in_url
from tests.pictures import png

INT8, FLOAT = a_candidate(), a_candidate("onnx", size=5_000_000, share=0.8, lost=0.01)
WEIGHTS = a_candidate("weights", size=9_000_000, share=1.0, lost=0.0)
TEXTS = ("crow", "jay", "rook")


def answered(sure: tuple[float, ...], *places: int) -> dict[str, LabelledAnswer]:
    known = zip(places, sure, (0, 1, 2, 0), strict=True)
    return {
        f"{number}.png": LabelledAnswer(text=TEXTS[place], sure=share, label=TEXTS[label])
        for number, (place, share, label) in enumerate(known, 1)
    }


SURE = 0.9, 0.8, 0.55, 0.95
ANSWERS = FileAnswers(original=answered((0.9, 0.8, 0.7, 0.6), 0, 1, 2, 1), file=answered(SURE, 0, 1, 0, 0))


@pytest.fixture
def two_files(service: Service, backend: Backend) -> str:
    run_id = finish(service, backend, RunSpec())
    keep(backend, run_id)
    return run_id


def keep(backend: Backend, run_id: str) -> None:
    folder = backend.store.folder(run_id)
    folder.save("0" * 16, Delivery(candidates=(INT8, FLOAT)))
    folder.save_answers(INT8.file, ANSWERS)
    folder.save_answers(FLOAT.file, replace(ANSWERS, file=answered(SURE, 0, 2, 2, 0)))


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was asked for."""
    asked: list[tuple[str, ...]] = []

    def show(self: Work, run_id: str, names: tuple[str, ...]) -> dict[str, bytes]:
        asked.append(names)
        return {name: png() for name in names}

    monkeypatch.setattr(Work, "pictures", show)
    return asked


def open_compare(app: AppTest, *runs: str, **query: str) -> AppTest:
    open_page(app, PAGE, run=list(runs), **query)
    return wait_for_card(app)


def test_the_original_and_the_best_file_come_first(app: AppTest, two_files: str, pictures) -> None:
    open_compare(app, two_files)
    assert not app.exception
    sides = [app.selectbox(key=f"compare.file.{side}") for side in ("first", "second")]
    assert sides[0].options == [
        "demo: .onnx file in 8-bit numbers, 4.70 MB",
        "demo: original as .onnx file, 5.00 MB",
        "demo: the original",
    ]
    assert (sides[0].value.split(".")[1], sides[1].value) == ("original", f"{two_files[:8]}.{INT8.file}")
    right = "the original alone is right on 1, .onnx file in 8-bit numbers alone on 1, neither on 0"
    found = f"**2 of 4 pictures are answered differently: {right}.**"
    assert found in texts(app)
    assert pictures == [("4.png", "3.png")]  # the surest first
    assert "crow  \nthe original: jay (60 %)  \n\\.onnx file in 8-bit numbers: crow (95 %), right" in texts(app)
    assert len(app.image) == 2


def test_files_that_are_called_alike_are_two_options(app: AppTest, two_files: str, backend: Backend) -> None:
    figures = replace(INT8.figures, file_bytes=INT8.figures.file_bytes + 1)
    twin = replace(INT8, file=f"deployed-{'1' * 16}.onnx", figures=figures)
    backend.store.folder(two_files).save("0" * 16, Delivery(candidates=(INT8, twin)))
    open_compare(app, two_files)
    sides = app.selectbox(key="compare.file.first")
    assert sides.options[:2] == [f"demo: .onnx file in 8-bit numbers, 4.70 MB{number}" for number in ("", " (2)")]
    sides.set_value(f"{two_files[:8]}.{twin.file}").run()
    assert app.selectbox(key="compare.file.first").value == f"{two_files[:8]}.{twin.file}"


def test_any_two_files_can_be_chosen_and_the_address_keeps_them(app: AppTest, two_files: str, another_app) -> None:
    open_compare(app, two_files)
    app.selectbox(key="compare.file.first").set_value(f"{two_files[:8]}.{FLOAT.file}").run()
    wait_for_card(app)
    both = "original as .onnx file alone is right on 1, .onnx file in 8-bit numbers alone on 1"
    assert f"2 of 4 pictures are answered differently: {both}" in texts(app)
    linked = another_app()
    open_page(linked, PAGE, run=[two_files], **{"file-first": in_url(app, "file-first")[0]})
    assert linked.selectbox(key="compare.file.first").value == f"{two_files[:8]}.{FLOAT.file}"
    app.selectbox(key="compare.file.second").set_value(f"{two_files[:8]}.{FLOAT.file}").run()
    assert "Choose two different files" in texts(app)


def test_files_of_two_runs_with_the_same_images(app: AppTest, two_files: str, service, backend, tmp_path) -> None:
    second = finish(service, backend, RunSpec())
    keep(backend, second)
    other = finish(service, backend, RunSpec(data=DataSpec(kind="random")))
    keep(backend, other)
    service.rename(other, "noise")
    open_compare(app, two_files, second, other)
    assert not app.exception
    assert [app.selectbox(key=f"compare.file.{side}").value.split(".")[0] for side in ("first", "second")] == [
        two_files[:8],
        second[:8],
    ]
    assert "Both give the same answers to 4 pictures." in texts(app)
    assert "Left out, as they were measured on other images than demo: noise." in texts(app)


def test_files_without_kept_answers_are_said(app: AppTest, service: Service, backend: Backend) -> None:
    run_id = finish(service, backend, RunSpec())
    backend.store.folder(run_id).save("0" * 16, Delivery(candidates=(INT8, WEIGHTS)))
    open_compare(app, run_id)
    assert not app.exception
    assert "its answers were not kept. Make the file again to see this." in texts(app)


def test_pictures_that_are_gone_are_said_and_answers_still_shown(
    app: AppTest, two_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InvalidDataset("The archive is no longer there.")

    monkeypatch.setattr(Work, "pictures", refuse)
    open_compare(app, two_files)
    assert [error.value for error in app.error] == ["The archive is no longer there."]
    assert "the original: jay (60 %)" in texts(app)
