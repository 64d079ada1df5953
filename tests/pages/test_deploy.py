"""The file that runs, on the Schedule page: asked for, waiting, failed, measured, taken."""

import zipfile
from dataclasses import replace

import pytest

from senseapp.compressions import QuantizationConfig
from senseapp.core.errors import NotFound
from senseapp.metrics import METRICS
from senseapp.records.deployment import DeploySettings
from senseapp.records.executed import ExecutedNode, IntegerShare
from senseapp.records.jobs import RunState
from senseapp.records.spec import Goal, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import DeliverTask
from senseapp.server.service import Service
from senseapp.views.frames.files import deployed_rows
from tests.cases import first_of
from tests.deployments import a_candidate, a_change, a_counted_change, a_deployment, some_figures, usual_figures
from tests.pages.conftest import finish, keep, open_page, texts

PAGE = "pages/targets.py"
MACS = {"a": 940, "b": 60}
OWN = "onnxruntime's quantize_static, per channel, unsigned activations, min-max"


def test_the_button_puts_it_in_the_queue_with_what_was_chosen(app, task: DeliverTask, service: Service) -> None:
    run_id = task.run_id
    open_page(app, PAGE, run=run_id)
    app.button_group(key=f"form.{run_id}").set_value("int8")
    app.number_input(key=f"schedule.deploy_batch.{run_id}").set_value(4)
    app.button_group(key=f"tolerated.{run_id}").set_value(0.02)
    app.button_group(key=f"adapt.{run_id}").set_value("minutes").run()  # one control for proof and file
    app.button(key=f"schedule.deploy.{run_id}").click().run()
    assert not app.exception
    asked = replace(task, adapting="minutes", allowed_drop=0.02, settings=DeploySettings(kind="int8", batch=4))
    assert service.work.progress(asked).state is RunState.QUEUED
    app.button(key=f"schedule.deploy_stop.{run_id}").click().run()
    assert service.work.progress(asked).state is RunState.CANCELLED
    assert service.work.progress(task) is None


def test_each_file_stands_with_its_own_figures_and_its_button(app, task: DeliverTask, backend: Backend) -> None:
    nodes = [ExecutedNode(name=name, kind="Conv", in_integers=name == "a", macs=macs) for name, macs in MACS.items()]
    integers = IntegerShare.of(nodes, kept=["b"], layers={"b": "blocks.0.0.conv_dw"})
    record = a_deployment(integers=integers)
    file = a_candidate("mixed", metric="top1", lost=0.005, schedule=task.schedule, deployment=record)
    keep(backend, task.run_id, task.key, file)
    open_page(app, PAGE, run=task.run_id)
    assert not app.exception
    assert file.headline in texts(app)
    assert not [frame for frame in app.dataframe if "A call" in frame.value]  # for experts
    (folded,) = (each for each in app.expander if each.label == "What is computed in integers?")
    assert not folded.proto.expanded
    assert integers is not None
    assert integers.sentence in texts(app)
    assert "1 of 2 compute in integers" in texts(app)
    assert "from 50 % of its multiplications on" in texts(app)
    assert folded.dataframe[0].value.to_numpy().tolist() == [
        ["blocks.0.0.conv_dw", "Conv", "6", "8 bits harm the answers"]
    ]
    app.toggle(key="account.expert").set_value(True).run()
    assert ".onnx file, partly in 8-bit numbers, 2 parts in full precision" in texts(app)
    table = next(frame.value for frame in app.dataframe if "A call" in frame.value)
    assert list(table["File"]) == [*("This file", "The original", "All of it in 8-bit numbers", OWN)]
    assert table["Answers"][0] == f"{METRICS['agreement'].label} 95.5 % (94.5 to 96.5)"
    assert table["A call"][0] == "5.2 ms (5.1 to 5.3)"
    assert table["% of the original's time"][2] == "49 (48 to 50)"
    assert table["Size"][1] == "18.6 MB"
    for expected in ("on 200 images", "Some CPU with VNNI", "`blocks.0.0.conv_dw`", "1 image a call on 1 core"):
        assert expected in texts(app)
    [button] = [each for each in app.get("download_button") if each.label.startswith("Get the file that runs")]
    assert button.proto.type == "primary"


def test_what_loses_too_much_or_does_not_pay_is_said(app, task: DeliverTask, backend: Backend) -> None:
    harmful = a_candidate("int8", metric="top1", lost=0.2, schedule=task.schedule)
    useless = a_candidate("onnx", metric="top1", size=18_800_000, share=1.0, lost=0.0, schedule=task.schedule)
    keep(backend, task.run_id, task.key, harmful, useless, notes=("There is no ONNX file in int8: reason.",))
    open_page(app, PAGE, run=task.run_id)
    assert not app.exception
    assert "Loses more than is tolerated." in texts(app)
    assert "There is no ONNX file in int8: reason." in texts(app)
    assert "Not clearly smaller or faster." in texts(app)
    labels = [each.label for each in app.get("download_button")]
    assert not [label for label in labels if label.startswith("Get the file that runs")]
    assert "Get the .onnx file in 8-bit numbers, zeros in 4 of 6 layers, 4.70 MB" in labels


@pytest.mark.parametrize(("goal", "form"), first_of([("smaller", "float"), ("faster", "quickest")]))
def test_the_form_of_a_schedule_of_bits_follows_the_goal(app, service, backend, goal: Goal, form: str) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(2, 4, 8)), goal=goal)
    run_id = finish(service, backend, spec)
    open_page(app, PAGE, run=run_id)
    assert not app.exception
    assert app.button_group(key=f"form.{run_id}").value == form


def test_what_was_measured_on_other_images_is_not_said_to_be_worse(app, task: DeliverTask, backend: Backend) -> None:
    change, other = (a_counted_change(0, images, metric="top1") for images in (200, 60))
    small, large = (a_candidate("int8", size=size, schedule=task.schedule) for size in (1_000_000, 2_000_000))
    files = [
        replace(each, figures=replace(each.figures, changes=(made,)))
        for each, made in ((small, change), (large, other))
    ]
    keep(backend, task.run_id, task.key, *files)
    open_page(app, PAGE, run=task.run_id)
    assert not app.exception
    assert [each.value for each in app.warning] == ["Not compared: measured on other images."]


def test_the_kit_holds_the_file_and_how_it_is_used(task: DeliverTask, service: Service, backend, tmp_path) -> None:
    candidate = a_candidate()
    with pytest.raises(NotFound, match="not on this server"):
        service.work.candidate_file(task.run_id, candidate)
    keep(backend, task.run_id, task.key, candidate)
    with zipfile.ZipFile(service.work.pack_kit(task.run_id, candidate, tmp_path / "file")) as archive:
        assert archive.read("digits-int8.onnx") == b"onnx" * 1000
        assert archive.read("README.txt").decode().count("\n") == 3
    with pytest.raises(NotFound):
        Service(backend, owner="somebody else").work.candidate_file(task.run_id, candidate)


def test_the_simulation_stands_below_the_file_without_a_time() -> None:
    first, simulated, *_ = deployed_rows(a_deployment(simulated=(a_change("agreement", 0.04), a_change("kl", 0.012))))
    assert (first[0], simulated[0]) == ("This file", "Predicted by simulation")
    assert simulated[1:3] == (f"{METRICS['agreement'].label} 96.0 % (95.0 to 97.0)", "–")


def test_labels_stand_in_for_agreement_and_no_share_is_above_all() -> None:
    changes = (a_change("top1", -0.005, baseline=0.99), a_change("agreement", 0.01), a_change("kl", 0.01))
    file = replace(some_figures(0.0041, 0.49, 4_900_000), changes=changes)
    rows = deployed_rows(a_deployment(figures=usual_figures(file=file)))
    assert rows[0][1] == f"{METRICS['top1'].label} 99.5 % (98.5 to 100)"


def test_a_file_that_was_made_of_the_schedule_stands_before_the_offer_of_another(app, task, backend: Backend) -> None:
    file = a_candidate("mixed", metric="top1", lost=0.005, schedule=task.schedule, deployment=a_deployment())
    keep(backend, task.run_id, replace(task, allowed_drop=0.03).key, file)
    open_page(app, PAGE, run=task.run_id)
    assert not app.exception
    assert file.headline in texts(app)
    assert app.button(key=f"schedule.deploy.{task.run_id}").label == "Make another with these settings"
