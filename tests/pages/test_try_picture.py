"""Try it with your picture: beside the file that runs, with a sentence where the picture cannot be used."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import InvalidDataset
from senseapp.records.answers import PictureAnswer, PictureAnswers
from senseapp.server.finished_runs import Work
from tests.pages.conftest import open_page, texts, wait_for_card
from tests.pages.test_recommendation import RESULTS, recommend
from tests.pictures import png


def says(name: str, share: float) -> PictureAnswer:
    return PictureAnswer(text=name, shares=((name, share), ("rook_", 0.02)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, backend) -> list[Path]:
    """The pictures that the networks were asked about; the file in int8 takes jays for crows."""
    pictures: list[Path] = []

    def answer(self: Work, run_id: str, picture: Path) -> PictureAnswers:
        pictures.append(picture)
        if not picture.read_bytes().startswith(b"\x89PNG"):
            raise InvalidDataset("mine.png cannot be used as a picture: not a picture. Choose another.")
        files = [each for each in backend.store.folder(run_id).candidates() if each.runs]
        answers = {each.file: says("crow" if each.form == "int8" else "jay", 0.91) for each in files}
        return PictureAnswers(png=png(), input_size=(224, 192), original=says("jay", 0.934), files=answers)

    monkeypatch.setattr(Work, "try_picture", answer)
    return pictures


def open_dialog(app: AppTest, run_id: str) -> None:
    open_page(app, RESULTS, run=run_id)
    assert not app.get("file_uploader")
    app.button(key=f"try.open.{run_id}").click().run()


def drop(app: AppTest, name: str, content: bytes) -> AppTest:
    app.file_uploader[0].upload(name, content).run()
    return wait_for_card(app)


def bars(app: AppTest) -> list[tuple[str, int]]:
    return [(each.proto.text, each.proto.value) for each in app.get("progress")]


def test_both_answers_stand_side_by_side(app: AppTest, finished_run, backend, asked) -> None:
    recommend(backend, finished_run)
    open_dialog(app, finished_run)
    assert not bars(app)
    drop(app, "holiday.png", png())
    assert not app.exception
    assert "## The answers differ: jay before, crow after." in texts(app)
    assert "**The original, in PyTorch**" in texts(app)
    assert r"**\.onnx file in 8-bit numbers, in onnxruntime**" in texts(app)
    assert bars(app) == [("jay · 93.4 %", 93), (r"rook\_ · 2.0 %", 2), ("crow · 91.0 %", 91), (r"rook\_ · 2.0 %", 2)]
    assert [path.name for path in asked] == ["holiday.png"]
    drop(app, "other.png", png())
    assert [path.name for path in asked] == ["holiday.png", "other.png"]


def test_a_bad_picture_is_said_beside_the_uploader_and_another_one_can_follow(
    app: AppTest, finished_run, backend, asked
) -> None:
    recommend(backend, finished_run)
    open_dialog(app, finished_run)
    drop(app, "mine.png", b"<html>")
    assert [error.value for error in app.error] == [
        "mine.png cannot be used as a picture: not a picture. Choose another."
    ]
    drop(app, "mine.png", png())
    assert not app.error
    assert "## The answers differ: jay before, crow after." in texts(app)


def test_files_that_no_runtime_runs_cannot_be_tried(app: AppTest, finished_run, backend, asked) -> None:
    recommend(backend, finished_run)
    open_dialog(app, finished_run)
    app.segmented_control(key=f"for.{finished_run}").set_value("targets").run()
    assert not app.exception
    assert not [each for each in app.button if each.label.startswith("Try it")]  # weights run nowhere as they are
