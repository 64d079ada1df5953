"""The page Check a file: both files, images and limits, then progress, verdict and downloads."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NoReturn

import onnx
import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import SenseError, UnsupportedModel
from senseapp.records.check import CheckSpec
from senseapp.records.schedule import Schedule
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.checks import Checks
from senseapp.server.service import Service
from tests.check_pairs import PAIRS, Workshop
from tests.deployments import a_candidate
from tests.pages.conftest import finish, keep, open_page, texts, wait_for_card
from tests.pages.records import NUM_IMAGES, profile
from tests.pages.test_analyze_uploads import checkpoint

PAGE = "pages/check.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A reference and two candidates by name."""
    shop = Workshop(tmp_path_factory.mktemp("files"))
    found = {"reference": shop.reference.read_bytes()}
    for name, pair in (("good", "other names inside"), ("bad", "classes reversed")):
        made = next(each for each in PAIRS if each.name == pair).make(shop)
        assert isinstance(made, onnx.ModelProto)
        found[name] = made.SerializeToString()
    return found


@pytest.fixture
def page(app: AppTest) -> AppTest:
    open_page(app, PAGE)
    assert not app.exception
    return app


def offer(app: AppTest, files: dict[str, bytes], candidate: str) -> AppTest:
    app.file_uploader[0].upload("float.onnx", files["reference"]).run()
    app.file_uploader[0].upload("int8.onnx", files[candidate]).run()
    return app.button_group(key="check.data.source").set_value("None").run()


def test_nothing_can_be_started_before_both_files_are_there(page: AppTest, files: dict[str, bytes]) -> None:
    assert page.button(key="check.start").disabled
    assert len(page.file_uploader) == 2
    page.file_uploader[0].upload("float.onnx", files["reference"]).run()
    assert page.button(key="check.start").disabled
    assert "`float.onnx`" in texts(page)


@pytest.mark.parametrize("channels", [1, 3])
def test_photographs_are_offered_to_networks_that_take_colours_only(
    page: AppTest, service: Service, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    assert "Handwritten digits" not in texts(page)  # of the demo network, which nobody checks
    card = replace(profile(), input_shape=(channels, 32, 32))
    monkeypatch.setattr(type(service.inputs), "model_card", lambda _inputs, _model: card)
    page.file_uploader[0].upload("float.onnx", files["reference"]).run()
    wait_for_card(page)
    assert "Bring images like those that the network is made for" in texts(page)
    assert ("Take photographs" in [button.label for button in page.button]) == (channels == 3)


def test_a_check_is_started_with_its_limits_watched_and_cancelled(
    page: AppTest, files: dict[str, bytes], service: Service
) -> None:
    offer(page, files, "good")
    page.number_input(key="check.drop.classification").set_value(2.5).run()
    page.number_input(key="check.time").set_value(1.5).run()
    page.button(key="check.start").click().run()
    assert not page.exception
    in_url = page.query_params["check"]
    check_id = in_url if isinstance(in_url, str) else in_url[0]
    assert "int8.onnx against float.onnx" in texts(page)
    assert "1st in the queue" in page.get("progress")[0].proto.text
    (record,) = service.checks.recent()
    assert record.check_id == check_id
    page.button(key="check.cancel").click().run()
    page.run()
    assert "This check was cancelled." in texts(page)
    page.button(key="check.another").click().run()
    assert page.button(key="check.start")
    assert "Earlier checks" in texts(page)


def test_the_task_that_outputs_of_the_original_fit_is_preset(
    page: AppTest, service: Service, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = type(service.inputs).examine_onnx
    monkeypatch.setattr(
        type(service.inputs),
        "examine_onnx",
        lambda inputs, model: replace(examine(inputs, model), fitting_tasks=("segmentation", "detection")),
    )
    page.file_uploader[0].upload("float.onnx", files["reference"]).run()
    wait_for_card(page)
    assert page.selectbox(key="check.task").value == "segmentation"
    page.selectbox(key="check.task").set_value("classification").run()
    wait_for_card(page)
    assert page.selectbox(key="check.task").value == "classification"


def test_two_checkpoints_are_compared_as_the_architecture_that_a_person_confirms(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CheckSpec] = []
    monkeypatch.setattr(Checks, "start", lambda _checks, spec: asked.append(spec) or "none")
    page.file_uploader[0].upload("float.pth", checkpoint()).run()
    wait_for_card(page)
    picker = next(box for box in page.selectbox if box.label == "Architecture")
    assert picker.options[0] == "timm/resnet10t · every name and shape fits"
    picker.set_value("timm/resnet18d").run()
    wait_for_card(page)
    assert "do not fit timm/resnet18d" in page.error[0].value
    next(box for box in page.selectbox if box.label == "Architecture").set_value("timm/resnet10t").run()
    wait_for_card(page)
    page.file_uploader[0].upload("sparse.pth", checkpoint()).run()
    page.button_group(key="check.data.source").set_value("None").run()
    page.button(key="check.start").click().run()
    assert not page.exception
    (spec,) = asked
    assert (spec.reference.title, spec.candidate.library) == ("timm/resnet10t", "auto")


@pytest.mark.parametrize(("side", "name"), [(0, "float.pth"), (1, "int8.onnx")])
def test_a_damaged_file_is_refused_beside_its_uploader(page: AppTest, side: int, name: str) -> None:
    page.file_uploader[side].upload(name, b"no weights at all").run()
    wait_for_card(page)
    assert page.error
    assert len(page.file_uploader) == 2
    assert page.button(key="check.start").disabled


@pytest.fixture
def finished(service: Service, backend: Backend, files: dict[str, bytes], request: pytest.FixtureRequest) -> str:
    """The id of a check that is done."""

    def uploaded(content: bytes, name: str) -> ModelSpec:
        path = service.inputs.reserve_upload(len(content))
        path.write_bytes(content)
        return ModelSpec(library="onnx", checkpoint=str(path.replace(path.with_name(name))), task="classification")

    spec = CheckSpec(
        reference=uploaded(files["reference"], "float.onnx"),
        candidate=uploaded(files[request.param], "int8.onnx"),
        data=DataSpec(kind="demo", mean=(0.304,), std=(0.323,)),
        num_samples=160,
        max_drop=0.03,
    )
    check_id = service.checks.start(spec)
    while backend.runner.run_next():
        pass
    return check_id


@pytest.mark.parametrize("finished", ["good"], indirect=True)
def test_a_candidate_that_holds_is_said_to(app: AppTest, service: Service, finished: str) -> None:
    service.set_expert(expert=True)
    open_page(app, PAGE, check=finished)
    assert not app.exception
    assert app.success[0].value.startswith("**Holds: Loss of right answers: 0 points on 160 images")
    assert "can be compared" not in texts(app)  # the premise of a verdict is none
    assert "No tensor of 23 differs" in texts(app)
    assert "0 of 160 answers change." in texts(app)


@pytest.mark.parametrize("finished", ["good"], indirect=True)
def test_a_check_that_ran_on_no_image_counts_none(
    app: AppTest, service: Service, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = service.checks.record(finished)
    monkeypatch.setattr(Checks, "record", lambda *_: replace(kept, report=replace(kept.report, images=0)))
    assert "without labels" not in texts(open_page(app, PAGE, check=finished))


@pytest.mark.parametrize("finished", ["bad"], indirect=True)
def test_one_that_fails_comes_with_cause_classes_and_files(
    app: AppTest, another_app: Callable[[], AppTest], service: Service, finished: str
) -> None:
    open_page(app, PAGE, check=finished)
    assert not app.exception
    assert app.error[0].value.startswith("**Fails: Loss of right answers:")
    assert ":material/lightbulb: Its classes probably come in another order" in texts(app)
    assert "/fc/Gemm" not in texts(app)  # names inside the files are for experts
    assert "“" not in texts(app)
    assert len(app.dataframe) == 2  # classes, pictures
    assert [each.label for each in app.get("download_button")] == ["Report (HTML)"]
    service.set_expert(expert=True)
    app = open_page(another_app(), PAGE, check=finished)
    assert "They part at tensor “scores” (Gemm “/fc/Gemm”)" in texts(app)
    assert len(app.dataframe) == 4  # and metrics of the field, tensors


def test_a_check_of_somebody_else_or_none_is_not_shown(app: AppTest) -> None:
    open_page(app, PAGE, check="0" * 32)
    assert not app.exception
    assert "There is no such check" in app.error[0].value


def test_the_network_of_a_run_is_a_reference(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, PAGE)
    app.button_group(key="check.reference.source").set_value("From a run").run()
    app.button_group(key="check.candidate.source").set_value("From a run").run()
    assert not app.exception
    assert app.selectbox(key="check.reference.run").value == finished_run
    assert "This run has no file yet" in texts(app)


def test_a_run_and_its_file_are_found_beside_a_namesake(
    app: AppTest, service: Service, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CheckSpec] = []
    monkeypatch.setattr(Checks, "start", lambda _checks, spec: asked.append(spec) or "none")
    runs = [finish(service, backend, RunSpec()) for _ in range(2)]
    first = a_candidate()
    figures = replace(first.figures, file_bytes=first.figures.file_bytes + 1)  # which nobody sees
    files = [first, replace(first, file=f"deployed-{'1' * 16}.onnx", figures=figures)]
    for run_id in runs:
        keep(backend, run_id, "0" * 16, *files)
    open_page(app, PAGE)
    for side in ("reference", "candidate"):
        app.button_group(key=f"check.{side}.source").set_value("From a run").run()
    for run_id, file in product(runs, files):
        for key, value in (("check.candidate.run", run_id), ("check.candidate.file", file.file)):
            picker = app.selectbox(key=key)
            assert len(set(picker.options)) == 2
            picker.set_value(value).run()
        app.button(key="check.start").click().run()
        assert not app.exception
        assert Path(asked[-1].candidate.checkpoint) == backend.store.folder(run_id).path / file.file
        app.query_params.clear()
        app.run()
    assert asked[-1].title == "demo: .onnx file in 8-bit numbers against demo"
    assert asked[-1].own_images == NUM_IMAGES
    assert "**The images of the run**: where it held enough of them out" in texts(app)
    app.button_group(key="check.data.source").set_value("None").run()
    app.button(key="check.start").click().run()
    assert asked[-1].own_images == 0  # other images than those of the run
    assert "The images of the run" not in texts(app)


def test_a_file_of_a_run_is_known_when_it_is_uploaded(
    service: Service, backend: Backend, finished_run: str, tmp_path: Path
) -> None:
    content, made = b"a file with these bytes", a_candidate()
    made = replace(made, figures=replace(made.figures, file_bytes=len(content)))
    keep(backend, finished_run, "0" * 16, made)
    (backend.store.folder(finished_run).path / made.file).write_bytes(content)
    uploaded = tmp_path / "model.onnx"
    for sent, known in ((content, made.file), (content[:-1] + b"?", None), (content + b"?", None)):
        uploaded.write_bytes(sent)
        assert getattr(service.work.made_as(finished_run, uploaded), "file", None) == known


@pytest.mark.parametrize(("removes", "offered"), [(False, True), (True, False)])
def test_weights_of_a_run_are_offered_where_the_original_has_their_layers(
    app: AppTest, backend: Backend, finished_run: str, shown_schedule: Schedule, *, removes: bool, offered: bool
) -> None:
    entries = shown_schedule.entries
    if removes:
        entries = tuple(replace(each, compression="pruning") for each in entries)
    schedule = replace(shown_schedule, entries=entries)
    assert schedule.removes_channels == removes
    keep(backend, finished_run, "0" * 16, replace(a_candidate("weights"), schedule=schedule))
    open_page(app, PAGE)
    app.button_group(key="check.candidate.source").set_value("From a run").run()
    assert not app.exception
    assert any(box.key == "check.candidate.file" for box in app.selectbox) == offered
    assert ("This run has no file that can be checked here." in texts(app)) != offered


@pytest.fixture
def unread(page: AppTest, service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[[SenseError], AppTest]:
    """Return the page with a reference that cannot be read, since ``error``."""

    def opened(error: SenseError) -> AppTest:
        def refuse(_inputs: object, _model: ModelSpec) -> NoReturn:
            raise error

        monkeypatch.setattr(type(service.inputs), "model_card", refuse)
        monkeypatch.setattr(type(service.inputs), "examine_onnx", refuse)
        page.file_uploader[0].upload("float.onnx", b"anything").run()
        deadline = time.monotonic() + 20
        while "Reading the file." in texts(page):
            assert time.monotonic() < deadline
            page.run()
        return page

    return opened


def test_a_reference_whose_layers_are_not_read_can_be_checked(unread: Callable[[SenseError], AppTest]) -> None:
    page = unread(UnsupportedModel("An operator is not known."))
    page.file_uploader[0].upload("int8.onnx", b"anything").run()
    assert page.button(key="check.start").disabled  # no demo is known to fit
    page.button_group(key="check.data.source").set_value("None").run()
    assert "Not shown as the original gets them: An operator is not known." in texts(page)
    assert not page.button(key="check.start").disabled
