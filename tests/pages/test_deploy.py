"""The file that runs, on the Schedule page: asked for, waiting, failed, measured, taken."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.frames.deployment import deployment_frame
from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidSpec, NotFound
from senseapp.records.deployment import Deployment, DeploySettings
from senseapp.records.jobs import RunState
from senseapp.records.schedule import Limits, ResourceBudget
from senseapp.runs.backend import Backend
from senseapp.runs.schedule_tasks import DeployTask
from senseapp.runs.service import Service
from senseapp.schedules.methods import make_schedule
from tests.deployments import a_change, a_deployment, some_figures, usual_figures
from tests.pages.conftest import open_page

PAGE = "pages/targets.py"


@pytest.fixture
def task(service: Service, finished_run: str) -> DeployTask:
    """What the button asks for before anything is moved."""
    budget, limits = ResourceBudget(kind="params", target=0.5), Limits(min_level=0.0, max_level=0.9)
    schedule = make_schedule(service.result(finished_run), budget=budget, limits=limits)
    return DeployTask(run_id=finished_run, schedule=schedule, settings=DeploySettings(kind="quickest"))


def keep(backend: Backend, task: DeployTask, record: Deployment) -> None:
    folder = backend.store.folder(task.run_id)
    folder.save(task.key, record)
    folder.deployed(task.key).write_bytes(b"onnx" * 1000)


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def test_the_button_puts_it_in_the_queue_with_what_was_chosen(app, task: DeployTask, service: Service) -> None:
    run_id = task.run_id
    open_page(app, PAGE, run=run_id)
    app.button_group(key=f"schedule.deploy_kind.{run_id}").set_value("int8").run()
    app.number_input(key=f"schedule.deploy_batch.{run_id}").set_value(4).run()
    app.button(key=f"schedule.deploy.{run_id}").click().run()
    assert not app.exception
    asked = DeployTask(run_id=run_id, schedule=task.schedule, settings=DeploySettings(kind="int8", batch=4))
    assert service.work.progress(asked).state is RunState.QUEUED
    app.button(key=f"schedule.deploy_stop.{run_id}").click().run()
    assert service.work.progress(asked).state is RunState.CANCELLED
    assert service.work.progress(task) is None


def test_what_was_measured_is_a_sentence_and_a_table(app, task: DeployTask, backend: Backend) -> None:
    keep(backend, task, a_deployment())
    open_page(app, PAGE, run=task.run_id)
    assert not app.exception
    assert app.success[0].value == a_deployment().findings[0]
    table = next(frame.value for frame in app.dataframe if "size" in frame.value)
    assert list(table["file"]) == [
        *("This file", "The original, in float", "All of it in int8", "onnxruntime's own default")
    ]
    assert table["agreement"][0] == "95.5 (94.5 to 96.5)"
    assert table["time"][0] == "5.2 (5.1 to 5.3)"
    assert table["share"][2] == "49 (48 to 50)"
    assert table["size"][1] == "18.6 MB"
    words = texts(app)
    for expected in ("on 200 images", "Some CPU with VNNI", "`blocks.0.0.conv_dw`", "1 image a call on 1 thread"):
        assert expected in words
    labels = [button.label for button in app.get("download_button")]
    assert "Download model.onnx (4.00 kB)" in labels


def test_what_speaks_against_the_file_is_a_warning(app, task: DeployTask, backend: Backend) -> None:
    keep(backend, task, a_deployment(findings=("It is slower.", "The default does less harm.")))
    open_page(app, PAGE, run=task.run_id)
    assert app.warning[0].value == "It is slower.\n\nThe default does less harm."
    assert not app.success


def test_why_there_is_no_file_is_said(app, task: DeployTask, service, backend, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidSpec("This network cannot be written as ONNX.")

    monkeypatch.setattr(DeployTask, "carry_out", refuse)
    service.work.start(task)
    backend.runner.run_next()
    open_page(app, PAGE, run=task.run_id)
    assert "cannot be written as ONNX" in app.error[0].value
    assert app.button(key=f"schedule.deploy.{task.run_id}").label == "Try again"


def test_the_zip_holds_the_file_and_how_it_is_used(task: DeployTask, service: Service, backend, tmp_path) -> None:
    with pytest.raises(NotFound, match="no such file yet"):
        service.work.deployed(task)
    keep(backend, task, a_deployment())
    with zipfile.ZipFile(service.work.pack_deployed(task, "model.onnx", tmp_path / "file")) as archive:
        assert archive.read("model.onnx") == b"onnx" * 1000
        assert archive.read("README.txt").decode().count("\n") == 3
    with pytest.raises(NotFound):
        Service(backend, owner="somebody else").work.deployed(task)


def test_a_record_is_read_back_as_it_was() -> None:
    record = a_deployment(simulated=(a_change("kl", 0.01),))
    assert loads(dumps(record), Deployment) == record


def test_the_simulation_stands_below_the_file_without_a_time() -> None:
    rows = deployment_frame(a_deployment(simulated=(a_change("agreement", 0.04), a_change("kl", 0.012))))
    assert list(rows["file"])[:2] == ["This file", "Predicted by simulation"]
    assert rows["agreement"][1] == "96.0 (95.0 to 97.0)"
    assert rows["time"][1] == "–"


def test_labels_stand_in_for_agreement_and_no_share_is_above_all() -> None:
    changes = (a_change("top1", -0.005, baseline=0.99), a_change("agreement", 0.01), a_change("kl", 0.01))
    file = replace(some_figures(0.0041, 0.49, 4_900_000), changes=changes)
    rows = deployment_frame(a_deployment(figures=usual_figures(file=file)))
    assert list(rows.columns) == ["file", "top1", "kl", "time", "share", "size"]
    assert rows["top1"][0] == "99.5 (98.5 to 100)"


def test_all_int8_is_not_shown_beside_itself() -> None:
    figures = usual_figures(file=some_figures(0.0041, 0.49, 4_900_000))
    rows = deployment_frame(a_deployment(settings=DeploySettings(kind="int8"), figures=figures))
    assert "All of it in int8" not in set(rows["file"])
